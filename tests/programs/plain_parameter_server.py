"""A plain tf.distribute program that knows nothing but TF_CONFIG: linear regression under parameter servers."""

import sys

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()

if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc")
    server.join()

strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weight = tf.Variable(0.0)

dataset = coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.from_tensor_slices(tf.linspace(-1.0, 1.0, 100)).repeat().batch(20))
iterator = iter(dataset)


@tf.function
def step(batches):
    inputs = next(batches)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((weight * inputs - 3.0 * inputs) ** 2)
    weight.assign_sub(0.5 * tape.gradient(loss, weight))


for _ in range(200):
    coordinator.schedule(step, args=(iterator,))
coordinator.join()
print(f"weight {weight.numpy():.3f} after {' '.join(sys.argv[1:])}", flush=True)
sys.exit(0 if abs(weight.numpy() - 3.0) < 0.01 else 1)
