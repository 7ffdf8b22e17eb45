package questions

import "github.com/batonhq/baton/internal/lab"

var majority []*lab.Question
