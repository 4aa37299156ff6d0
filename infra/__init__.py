"""Google Cloud, one component a file. Nothing here knows of trainings' mathematics or of Kubernetes objects."""
