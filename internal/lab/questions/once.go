package questions

import "github.com/batonhq/baton/internal/lab"

var once []*lab.Question
