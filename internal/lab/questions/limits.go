package questions

import "github.com/batonhq/baton/internal/lab"

var limits []*lab.Question
