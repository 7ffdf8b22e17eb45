package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/open"
)

func (a *app) completionCommand(root *cobra.Command) *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print completions for bash, zsh, fish or powershell",
		Long: `Prints a script that teaches the shell to complete the commands, the flags, and
the names of locks that are held at the moment. Names that would have to be quoted are
not proposed. Bash needs the package bash-completion, and zsh a compinit in ~/.zshrc.`,
		Example: `  source <(baton completion bash)
  baton completion zsh > "${fpath[1]}/_baton"
  baton completion fish > ~/.config/fish/completions/baton.fish
  baton completion powershell | Out-String | Invoke-Expression`,
		ValidArgs: shells,
		Args:      oneArg("SHELL"),
		RunE: does(func(_ context.Context, args []string) error {
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.stdout, true)
			case "zsh":
				return root.GenZshCompletion(a.stdout)
			case "fish":
				return root.GenFishCompletion(a.stdout, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(a.stdout)
			}
			return usage("completion for %s: there are bash, zsh, fish and powershell", safe(args[0]))
		}),
	}
}

// Completion runs at every press of the tab key, so its time and its proposals are
// bounded.
const (
	completeWithin = time.Second
	completeAtMost = 200
)

// completeKey proposes the names of locks that begin with what was typed.
func (a *app) completeKey(_ *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	return a.complete(args, held("", typed))
}

// proposing proposes keys of a store, until propose returns false.
type proposing func(ctx context.Context, store driver.Store, propose func(key, about string) bool)

// held proposes the names of locks that begin with prefix and the typed text, without the
// prefix.
func held(prefix, typed string) proposing {
	return func(ctx context.Context, store driver.Store, propose func(key, about string) bool) {
		in, ok := driver.As[driver.Inspector](store)
		if !ok {
			return
		}
		for info, err := range in.List(ctx, prefix+typed) {
			if err != nil || !propose(strings.TrimPrefix(info.Key, prefix), describeShort(info)) {
				return
			}
		}
	}
}

// complete proposes keys for the first argument only.
func (a *app) complete(args []string, of proposing) ([]string, cobra.ShellCompDirective) {
	const directive = cobra.ShellCompDirectiveNoFileComp
	if len(args) > 0 {
		return nil, directive
	}
	url, err := a.url()
	if err != nil {
		return nil, directive
	}
	ctx, cancel := context.WithTimeout(context.Background(), completeWithin)
	defer cancel()
	store, err := open.Store(ctx, url)
	if err != nil {
		return nil, directive
	}
	defer shut(store)
	var keys []string
	of(ctx, store, func(key, about string) bool {
		// A key that has to be quoted is not proposed: shells insert the common beginning
		// of several names unquoted, and execute what it contains at the next press of
		// the key.
		if shellWord(key) == key {
			keys = append(keys, cobra.CompletionWithDesc(key, about))
		}
		return len(keys) < completeAtMost
	})
	return keys, directive
}

// completeRun proposes a key, and behind it what the shell proposes for commands.
func (a *app) completeRun(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return a.completeKey(cmd, args, typed)
}

func describeShort(info driver.KeyInfo) string {
	if len(info.Holders) == 0 {
		return ""
	}
	var held baton.HeldError = *heldBy(info)
	return "held by " + ownerLabel(held.Owner, held.Foreign)
}
