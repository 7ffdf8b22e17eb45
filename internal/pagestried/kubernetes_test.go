package pagestried

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/batonhq/baton/internal/pagecode"
)

// forKubernetes says whether a block is an object of Kubernetes.
func forKubernetes(b pagecode.Block) bool {
	return b.Language == "yaml" && strings.Contains(b.Text, "apiVersion:")
}

// An object is what the pages use of Deployment and CronJob; another field is an error.
type object struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   meta   `yaml:"metadata"`
	Spec       struct {
		Template template `yaml:"template"`
		Replicas int      `yaml:"replicas"`
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		} `yaml:"selector"`
		Schedule          string `yaml:"schedule"`
		ConcurrencyPolicy string `yaml:"concurrencyPolicy"`
		JobTemplate       struct {
			Spec struct {
				Template     template `yaml:"template"`
				BackoffLimit int      `yaml:"backoffLimit"`
			} `yaml:"spec"`
		} `yaml:"jobTemplate"`
	} `yaml:"spec"`
}

type meta struct {
	Name   string            `yaml:"name"`
	Labels map[string]string `yaml:"labels"`
}

type template struct {
	Metadata meta `yaml:"metadata"`
	Spec     struct {
		TerminationGracePeriodSeconds int         `yaml:"terminationGracePeriodSeconds"`
		RestartPolicy                 string      `yaml:"restartPolicy"`
		Containers                    []container `yaml:"containers"`
	} `yaml:"spec"`
}

type container struct {
	Name    string   `yaml:"name"`
	Image   string   `yaml:"image"`
	Command []string `yaml:"command"`
	Env     []struct {
		Name      string `yaml:"name"`
		Value     string `yaml:"value"`
		ValueFrom struct {
			FieldRef struct {
				FieldPath string `yaml:"fieldPath"`
			} `yaml:"fieldRef"`
		} `yaml:"valueFrom"`
	} `yaml:"env"`
}

// containers returns the commands of an object's containers, for a shell. What
// Kubernetes would say of the pod is "pod-1".
func containers(text string) (script string, err error) {
	var o object
	if err := yaml.UnmarshalWithOptions([]byte(text), &o, yaml.Strict()); err != nil {
		return "", err
	}
	all := append(o.Spec.Template.Spec.Containers, o.Spec.JobTemplate.Spec.Template.Spec.Containers...)
	if o.APIVersion == "" || o.Kind == "" || o.Metadata.Name == "" || len(all) == 0 {
		return "", errors.New("no whole object with a container")
	}
	for name, value := range o.Spec.Selector.MatchLabels {
		if o.Spec.Template.Metadata.Labels[name] != value {
			return "", fmt.Errorf("its pods have no label %s: %s", name, value)
		}
	}
	for _, c := range all {
		line := "env"
		var names []string
		for _, e := range c.Env {
			if e.ValueFrom.FieldRef.FieldPath == "metadata.name" {
				e.Value = "pod-1"
			}
			if e.Value == "" {
				return "", fmt.Errorf("%s has no value", e.Name)
			}
			line += " " + quoted(e.Name+"="+e.Value)
			names = append(names, "$("+e.Name+")", e.Value)
		}
		for _, word := range c.Command {
			line += " " + quoted(strings.NewReplacer(names...).Replace(word))
		}
		script += line + "\n"
	}
	return script, nil
}

// quoted is a word for a shell.
func quoted(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

func TestContainersCatch(t *testing.T) {
	t.Parallel()
	const sound = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: x\nspec:\n  selector:\n    matchLabels: {app: x}\n" +
		"  template:\n    metadata:\n      labels: {app: x}\n    spec:\n      containers:\n        - name: x\n          command: [echo, \"$(A)\", \"it's\"]\n" +
		"          env:\n            - name: A\n              value: b\n"
	script, err := containers(sound)
	if want := "env 'A=b' 'echo' 'b' 'it'\\''s'\n"; err != nil || script != want {
		t.Errorf("%q, want %q: %v", script, want, err)
	}
	for old, wrong := range map[string]string{
		"containers:": "container:", "labels: {app: x}": "labels: {app: y}", "kind: Deployment\n": "", "value: b": "value: ''",
	} {
		if script, err := containers(strings.Replace(sound, old, wrong, 1)); err == nil {
			t.Errorf("with %q it is %q", wrong, script)
		}
	}
}
