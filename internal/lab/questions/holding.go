package questions

import "github.com/batonhq/baton/internal/lab"

var holding []*lab.Question
