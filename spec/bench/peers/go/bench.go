// bench.go - the workloads of spec/bench, written for Go.
//
// GOMAXPROCS=N build/peers/go-bench [names...]
//
// A channel per goroutine stands for the mailbox. The rule is that of
// spec/bench/measure.lua: rounds are doubled until one run takes 0.1 s
// (warm-up), then three runs of about 0.4 s, then the median.
package main

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"runtime"
	"sort"
	"strconv"
	"sync"
	"time"
)

const (
	ringSize = 1000
	senders  = 8
	window   = 1000 // messages a sender sends for each "go"
	batch    = 100  // goroutines alive at once in spawn_exit
	idle     = 100000
)

var benches = []struct {
	name string
	run  func()
}{
	{"ping_pong", pingPong}, {"ring", ring}, {"fan_in", fanIn},
	{"spawn_exit", spawnExit}, {"idle_memory", idleMemory},
}

func main() {
	wanted := map[string]bool{}
	for _, name := range os.Args[1:] {
		wanted[name] = true
	}
	for _, b := range benches {
		if len(wanted) == 0 || wanted[b.name] {
			b.run()
		}
	}
}

// Workloads

func pingPong() {
	root, echo := make(chan int), make(chan int)
	go func() {
		for m := range echo {
			root <- m
		}
	}()
	report("ping_pong", "round_trips/s", rate(1, func(n int) {
		for i := 0; i < n; i++ {
			echo <- i
			<-root
		}
	}))
}

func ring() {
	done := make(chan bool)
	first := make(chan int, 1)
	next := first
	for i := 0; i < ringSize; i++ {
		in := make(chan int, 1)
		if i == ringSize-1 {
			in = first
		}
		go func(in, next chan int) {
			for hops := range in {
				if hops == 0 {
					done <- true
				} else {
					next <- hops - 1
				}
			}
		}(in, next)
		next = in
	}
	report("ring", "hops/s", rate(1, func(n int) {
		first <- n
		<-done
	}))
}

func fanIn() {
	root := make(chan int, senders*window)
	var starts [senders]chan int
	for s := range starts {
		starts[s] = make(chan int, 1)
		go func(start chan int) {
			for k := range start {
				for i := 0; i < k; i++ {
					root <- i
				}
			}
		}(starts[s])
	}
	report("fan_in", "messages/s", rate(senders*window, func(n int) {
		for r := 0; r < n; r++ {
			for _, start := range starts {
				start <- window
			}
			for i := 0; i < senders*window; i++ {
				<-root
			}
		}
	}))
}

func spawnExit() {
	report("spawn_exit", "actors/s", rate(batch, func(n int) {
		var wg sync.WaitGroup
		for r := 0; r < n; r++ {
			wg.Add(batch)
			for i := 0; i < batch; i++ {
				go wg.Done()
			}
			wg.Wait()
		}
	}))
}

func idleMemory() {
	root := make(chan int)
	boxes := make([]chan int, idle)
	runtime.GC()
	before := resident()
	for i := range boxes {
		box := make(chan int)
		boxes[i] = box
		go func() { root <- <-box }()
	}
	time.Sleep(200 * time.Millisecond)
	runtime.GC()
	bytes := (resident() - before) / idle
	for _, box := range boxes { // all of them are alive
		box <- 1
		<-root
	}
	report("idle_memory", "bytes", bytes)
}

// Measuring

// resident is the bytes of resident memory and of page tables.
func resident() float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		panic(err)
	}
	sum := 0.0
	for _, key := range []string{"VmRSS", "VmPTE"} {
		m := regexp.MustCompile(key + `:\s+(\d+)`).FindSubmatch(status)
		kib, _ := strconv.ParseFloat(string(m[1]), 64)
		sum += kib * 1024
	}
	return sum
}

func rate(block int, work func(int)) float64 {
	n := 1
	t := timed(work, n)
	for t < 0.1 {
		n *= 2
		t = timed(work, n)
	}
	n = int(math.Ceil(float64(n) * 0.4 / t))
	times := []float64{timed(work, n), timed(work, n), timed(work, n)}
	sort.Float64s(times)
	return float64(n*block) / times[1]
}

func timed(work func(int), n int) float64 {
	start := time.Now()
	work(n)
	return time.Since(start).Seconds()
}

func report(bench, unit string, value float64) {
	fmt.Printf("{\"peer\":\"go\",\"bench\":%q,\"schedulers\":%d,"+
		"\"value\":%.0f,\"unit\":%q}\n",
		bench, runtime.GOMAXPROCS(0), value, unit)
}
