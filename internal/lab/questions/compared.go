package questions

import "github.com/batonhq/baton/internal/lab"

var compared []*lab.Question
