package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/batonhq/baton/internal/suggest"
	"github.com/batonhq/baton/open"
)

// Ran marks the errors of commands, as opposed to those of their usage.
type Ran struct{ error }

func (r Ran) Unwrap() error { return r.error }

// Does makes the body of a command. It marks errors with Ran.
func Does(body func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := body(cmd.Context(), args); err != nil {
			return Ran{err}
		}
		return nil
	}
}

// Wrong is an error about the arguments. The URL of a store is secret even in the wrong
// place: Wrong redacts every argument that is one.
func Wrong(format string, args ...any) error {
	for i, arg := range args {
		if text, ok := arg.(string); ok {
			args[i] = RedactURL(text)
		}
	}
	return fmt.Errorf(format, args...)
}

// urlStart is the beginning of a URL.
var urlStart = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://`)

func RedactURL(text string) string {
	if at := urlStart.FindStringIndex(text); at != nil {
		return text[:at[0]] + open.Redact(text[at[0]:])
	}
	return text
}

// OfFile is an error about the file of a flag, with a URL in its name redacted.
func OfFile(err error) error {
	if of, ok := errors.AsType[*fs.PathError](err); ok {
		return &fs.PathError{Op: of.Op, Path: RedactURL(of.Path), Err: of.Err}
	}
	return err
}

// wantedValues describe the values of flags, by pflag's names of their types.
var wantedValues = map[string]string{
	"bool":     "it takes no value",
	"duration": "it is a duration, such as 30s, 5m or 1h30m",
	"patience": "it is a duration, such as 30s, 5m or 1h30m, or forever",
	"int":      "it is a whole number",
	"int64":    "it is a whole number",
	"intSlice": "they are whole numbers, with commas between them",
	"uint64":   "it is a whole number, zero or more",
}

// Misspelt turns cobra's errors into Baton's, and adds "did you mean" to those about
// flags.
func Misspelt(cmd *cobra.Command, err error) error {
	text := strings.ReplaceAll(err.Error(), "\n\nDid you mean this?\n\t", ": did you mean ")
	text = strings.Join(strings.Fields(text), " ")
	if of := together.FindStringSubmatch(text); of != nil {
		text = flagNames(of[1]) + " exclude each other"
	} else if of := required.FindStringSubmatch(text); of != nil {
		text = flagNames(strings.NewReplacer(`"`, "", ",", "").Replace(of[1]))
		text += map[bool]string{false: " is missing", true: " are missing"}[strings.Contains(text, " ")]
	} else if of := unexpected.FindStringSubmatch(text); of != nil && cmd.HasParent() && !cmd.HasSubCommands() {
		text = fmt.Sprintf("%s takes no argument: what is %s?", cmd.CommandPath(), of[1])
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var names []string
		collect := func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		}
		cmd.Flags().VisitAll(collect)
		cmd.InheritedFlags().VisitAll(collect)
		if near := suggest.Nearest(unknown.GetSpecifiedName(), names); near != "" {
			text += ": did you mean --" + near + "?"
		}
	} else if strings.Contains(text, "did you mean") {
		text += "?"
	}
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if want, ok := wantedValues[bad.GetFlag().Value.Type()]; ok { // Go's text names its own functions
			text = strings.TrimSuffix(text, strings.Join(strings.Fields(bad.Unwrap().Error()), " ")) + want
		}
	}
	// A URL in the wrong place is secret, too, up to the end of its argument.
	text = urls.ReplaceAllStringFunc(text, func(word string) string {
		if quoted, ok := strings.CutPrefix(word, `"`); ok {
			return `"` + RedactURL(strings.TrimSuffix(quoted, `"`)) + `"`
		}
		return RedactURL(word)
	})
	return errors.New(text)
}

// cobra's texts about flags that exclude each other, missing flags, and an argument too
// many.
var (
	together   = regexp.MustCompile(`^if any flags in the group .*; \[(.*)\] were all set$`)
	required   = regexp.MustCompile(`^required flag\(s\) (.*) not set$`)
	unexpected = regexp.MustCompile(`^unknown command ("(?:[^"\\]|\\.)*") for `)
)

// flagNames turns names separated by spaces into flags.
func flagNames(names string) string {
	return "--" + strings.ReplaceAll(names, " ", " and --")
}

// urls are words and quoted texts with a URL.
var urls = regexp.MustCompile(`"(?:[^"\\]|\\.)*://(?:[^"\\]|\\.)*"|\S+://\S*`)

// WithoutCredentials replaces the user information of URLs in a text.
func WithoutCredentials(text string) string { return credentials.ReplaceAllString(text, "${1}***@") }

var credentials = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)\S*@`)
