package questions

import "github.com/batonhq/baton/internal/lab"

var databases []*lab.Question
