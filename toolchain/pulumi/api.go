// This file replaces the command `pulumi api`, whose OpenAPI parser takes a fifth of the whole compile.
package cloud

import (
	"errors"

	"github.com/spf13/cobra"
)

// NewAPICmd says what to use instead.
func NewAPICmd() *cobra.Command {
	return &cobra.Command{
		Use:                "api",
		Short:              "Call any Pulumi Cloud API endpoint (not in this build)",
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("this Pulumi was built without `pulumi api`; install the official CLI (https://www.pulumi.com/docs/install/)")
		},
	}
}

// ParamSpec is a part of envelope.go's answers, of which none is ever given.
type ParamSpec struct{}
