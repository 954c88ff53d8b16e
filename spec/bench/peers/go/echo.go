// echo.go - a TCP echo server, one goroutine per connection.
//
// GOMAXPROCS=N build/peers/go-echo
//
// Prints its port and serves until it is killed.
package main

import (
	"fmt"
	"net"
	"os"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	for {
		conn, err := listener.Accept()
		if err == nil {
			go echo(conn)
		}
	}
}

// Bytes go through a buffer of its own, as a program that looks at them would
// do it; io.Copy would splice them in the kernel.
func echo(conn net.Conn) {
	defer conn.Close()
	buffer := make([]byte, 16<<10)
	for {
		n, err := conn.Read(buffer)
		if n > 0 {
			if _, err := conn.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
