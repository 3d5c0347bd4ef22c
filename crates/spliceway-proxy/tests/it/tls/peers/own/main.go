// An end of TLS with the library of Go. It sends what it reads on stdin, and prints what it
// receives. The end of stdin is the end of its side alone.
//
//	peer client ADDRESS CA NAME    connects; with RESUME=1, resumes a session of its own
//	peer server CERTIFICATE KEY    prints `ACCEPT ADDRESS`, and serves one connection
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"os"
)

func main() {
	var err error
	switch os.Args[1] {
	case "client":
		err = client(os.Args[2], os.Args[3], os.Args[4])
	case "server":
		err = server(os.Args[2], os.Args[3])
	}
	if err != nil {
		say("error: %v", err)
		os.Exit(1)
	}
}

func say(format string, values ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", values...)
}

func client(address, ca, name string) error {
	pem, err := os.ReadFile(ca)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	config := &tls.Config{
		RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS13,
		ClientSessionCache: tls.NewLRUClientSessionCache(1),
	}
	if os.Getenv("RESUME") != "" {
		// The ticket comes before the target's end.
		first, err := tls.Dial("tcp", address, config)
		if err != nil {
			return err
		}
		if err = first.CloseWrite(); err != nil {
			return err
		}
		if _, err = io.Copy(io.Discard, first); err != nil {
			return err
		}
		first.Close()
	}
	conn, err := tls.Dial("tcp", address, config)
	if err != nil {
		return err
	}
	return relay(conn)
}

func server(certificate, key string) error {
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return err
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		return err
	}
	fmt.Printf("ACCEPT %s\n", listener.Addr())
	conn, err := listener.Accept()
	if err != nil {
		return err
	}
	return relay(conn.(*tls.Conn))
}

// relay copies both ways, until both sides have ended.
func relay(conn *tls.Conn) error {
	if err := conn.Handshake(); err != nil {
		return err
	}
	say("resumed: %v", conn.ConnectionState().DidResume)
	sent := make(chan error)
	go func() {
		_, err := io.Copy(conn, os.Stdin)
		if err == nil {
			err = conn.CloseWrite()
		}
		sent <- err
	}()
	if _, err := io.Copy(os.Stdout, conn); err != nil {
		return err
	}
	say("received the end")
	if err := <-sent; err != nil {
		return err
	}
	return conn.Close()
}
