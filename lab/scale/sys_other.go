//go:build !linux

package scale

import "time"

// Elsewhere than on Linux nothing is known of processes and of the machine.

func thisMachine() machine                { return machine{} }
func loadAverage() float64                { return 0 }
func processCPU([]int) time.Duration      { return 0 }
func processMemory([]int) (bytes float64) { return 0 }
