package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton/internal/roles"
)

func (a *app) tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token COMMAND",
		Short: "Make access tokens for the clients of baton serve, and check the file of roles",
		Long: `An access token tells "baton serve" who a client is. The file of --roles says, in one line
for each caller, what it may do; it has only hashes of access tokens (docs/security.md).
A fencing token is something else: the number that a lock comes with.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.tokenNewCommand(), a.tokenCheckCommand())
	return cmd
}

func (a *app) tokenNewCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "new [flags] NAME [PREFIX=VERBS…]",
		Short: "Make an access token, and the line for the file of roles",
		Long: `Prints a new access token, which is shown this once, and the line for the file of roles,
which has its hash. Give the access token to its client, and add the line to the file;
then send HUP to baton serve. To replace an access token without an interruption, put
the new hash behind the one before, with a comma between, until the client has the new
one.

Verbs are lock, list, break, limit, giveback and once. giveback, beside limit, is for costs
below zero, which return what any caller has taken. The longest of the prefixes that a key
begins with decides.

` + exitTable,
		Example: `  baton token new team-a a/=lock,list
  baton token new -o json shop shop/=limit`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("NAME is missing")
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	a.queryFlags(cmd)
	cmd.RunE = does(func(_ context.Context, args []string) error {
		asJSON, err := a.json()
		if err != nil {
			return err
		}
		if err := roles.CheckName(args[0]); err != nil { // the error does not repeat the name, which may be a secret
			return usage("NAME: %w", err)
		}
		token := newAccessToken()
		columns := append([]string{args[0], roles.Credential(token)}, args[1:]...)
		for _, column := range args[1:] {
			if column == "" || strings.ContainsAny(column, " \t\n\r") {
				return usage("a PREFIX=VERBS has no blanks: the file has no way to write them")
			}
		}
		line := strings.Join(columns, "  ")
		if len(args) == 1 {
			line += "  PREFIX=VERBS"
		} else {
			_, warnings, err := roles.Parse([]byte(line))
			if err != nil {
				return usage("that would be no line of the file of roles: %w", err)
			}
			for _, w := range warnings {
				a.say("%s", w.Reason)
			}
		}
		if asJSON {
			return printJSON(a.stdout, struct {
				Token string `json:"token"`
				Line  string `json:"line"`
			}{token, line}, true)
		}
		_, err = fmt.Fprintf(a.stdout, "%s\n%s\n", token, line)
		a.say("the first line is the access token, which is not shown again; the second is for the file of roles")
		return err
	})
	return cmd
}

// newAccessToken returns a random access token. It begins with a word that scanners for
// leaked secrets can find.
func newAccessToken() string {
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails
	return "baton_" + base64.RawURLEncoding.EncodeToString(random[:])
}

func (a *app) tokenCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Check a file of roles",
		Long: `Reads a file of roles as "baton serve" and "baton agent" would, and says what is wrong with
it, or perhaps not what was meant.

` + exitTable,
		Example: `  baton token check /etc/baton/roles && systemctl reload baton-serve`,
		Args:    oneArg("FILE"),
		RunE: does(func(_ context.Context, args []string) error {
			f, err := a.openRoles(args[0])
			if err != nil {
				return err
			}
			tokens, certificates, users := f.Table().Count()
			_, err = fmt.Fprintf(a.stdout, "access tokens: %d, names of certificates: %d, users of the host: %d\n", tokens, certificates, users)
			return err
		}),
	}
}
