package main

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton/internal/suggest"
	"github.com/batonhq/baton/open"
)

func (a *app) schemaCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schema COMMAND",
		Short: "Print or apply the tables that a database needs",
		Long: `A store in a database has tables. They are made by the first program that opens the
store, if its user may. Where a database administrator does that, print the SQL for
them, or apply it once with a user who may.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.schemaPrintCommand(), a.schemaApplyCommand())
	return cmd
}

func (a *app) schemaPrintCommand() *cobra.Command {
	dialects := strings.Join(open.Dialects(), ", ")
	var dialect string
	cmd := &cobra.Command{
		Use:   "print [flags]",
		Short: "Print the SQL that makes the tables",
		Long: `Prints the SQL that makes the tables of a dialect: ` + dialects + `. Without --dialect it is
that of the store. It may be run again, and does nothing to tables that are there.`,
		Example: `  baton schema print --dialect postgres | psql app`,
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringVar(&dialect, "dialect", "", "one of "+dialects)
	_ = cmd.RegisterFlagCompletionFunc("dialect", cobra.FixedCompletions(open.Dialects(), cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = does(func(context.Context, []string) error {
		if dialect == "" {
			url, err := a.url()
			if err != nil {
				return err
			}
			if dialect = open.Dialect(url); dialect == "" {
				return usage("store %s has no tables: name a dialect with --dialect, one of %s", open.Redact(url), dialects)
			}
		}
		text, ok := open.Schema(dialect)
		if !ok {
			if near := suggest.Nearest(dialect, open.Dialects()); near != "" {
				return usage("unknown dialect %q: did you mean %s?", safe(dialect), near)
			}
			return usage("unknown dialect %q: there are %s", safe(dialect), dialects)
		}
		_, err := a.stdout.WriteString(text)
		return err
	})
	return cmd
}

func (a *app) schemaApplyCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "apply [URL]",
		Short:   "Make the tables in a database",
		Long:    `Makes the tables that are missing. The store is the argument, or what --store or BATON_STORE says.`,
		Example: `  baton schema apply postgres://owner@db1/app?password-env=PW`,
		Args:    noMoreThanOne("URL"),
		RunE: does(func(ctx context.Context, args []string) error {
			if err := a.storeArgument(args); err != nil {
				return err
			}
			url, err := a.url()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, openTimeout)
			defer cancel()
			err = open.Migrate(ctx, url)
			switch {
			case errors.Is(err, errors.ErrUnsupported):
				return usage("store %s has no tables", open.Redact(url))
			case err != nil && codeOf(err) == exitFailed:
				return &exit{Code: exitUnavailable, Err: err}
			case err != nil:
				return err
			}
			a.say("the tables are there: %s", open.Redact(url))
			return nil
		}),
	}
}
