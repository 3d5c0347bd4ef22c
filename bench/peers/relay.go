// Relays every connection as Go programs do. Each direction is an io.Copy, which splices, and then
// a CloseWrite.
// Arguments: the address to listen on, and the addresses to connect to, which take turns.
package main

import (
	"io"
	"log"
	"net"
	"os"
	"runtime"
	"time"
)

func main() {
	runtime.GOMAXPROCS(1)
	// The addresses are IPv4. With "tcp", Go listens on :: instead of 0.0.0.0.
	listener, err := net.Listen("tcp4", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	targets := os.Args[2:]
	for turn := 0; ; turn++ {
		client, err := listener.Accept()
		if err != nil {
			// Most likely, no descriptor is free. Wait, as net/http does.
			time.Sleep(5 * time.Millisecond)
			continue
		}
		go relay(client.(*net.TCPConn), targets[turn%len(targets)])
	}
}

func relay(client *net.TCPConn, to string) {
	defer client.Close()
	connected, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	upstream := connected.(*net.TCPConn)
	defer upstream.Close()
	done := make(chan struct{})
	go func() {
		pass(client, upstream)
		close(done)
	}()
	pass(upstream, client)
	<-done
}

func pass(to, from *net.TCPConn) {
	io.Copy(to, from)
	to.CloseWrite()
}
