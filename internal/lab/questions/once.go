package questions

import "github.com/batonhq/baton/internal/lab"

var idempotency []*lab.Question
