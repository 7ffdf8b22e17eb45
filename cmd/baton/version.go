package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version [flags]",
		Short: "Show what this program was built from",
		Args:  cobra.NoArgs,
	}
	a.queryFlags(cmd)
	cmd.RunE = does(func(context.Context, []string) error {
		asJSON, err := a.json()
		if err != nil {
			return err
		}
		v := version()
		if asJSON {
			return printJSON(a.stdout, v, true)
		}
		_, err = fmt.Fprintln(a.stdout, v)
		return err
	})
	return cmd
}

type buildView struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (v buildView) String() string {
	text := "baton " + v.Version
	if v.Revision != "" {
		text += " (" + v.Revision
		if v.Modified {
			text += ", modified"
		}
		text += ")"
	}
	return text + " " + v.Go + " " + v.Platform
}

// Set by make release: a build outside of a clone has no other source for them.
var released, revision, revisionTime string

// version reads what the go command, or make release, wrote into the program.
func version() buildView {
	v := buildView{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value[:min(12, len(s.Value))]
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	if released != "" {
		v.Version, v.Revision, v.Time = released, revision[:min(12, len(revision))], revisionTime
	}
	return v
}
