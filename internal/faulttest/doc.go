// Package faulttest checks what Baton promises about crashes, stops and silence against
// real servers, real processes and real signals, through the public API. It has tests
// only.
package faulttest
