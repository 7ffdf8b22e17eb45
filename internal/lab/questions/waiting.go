package questions

import "github.com/batonhq/baton/internal/lab"

var waiting []*lab.Question
