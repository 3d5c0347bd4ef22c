// Gets "/" of a TLS server by Go's client: client.go ADDRESS NAME CA_FILE
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"os"
)

func main() {
	address, name, file := os.Args[1], os.Args[2], os.Args[3]
	pem, err := os.ReadFile(file)
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	config := &tls.Config{ServerName: name, RootCAs: roots, NextProtos: []string{"http/1.1"}}
	connection, err := tls.Dial("tcp", address, config)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprintf(connection, "GET /body HTTP/1.0\r\n\r\n")
	if _, err := io.Copy(os.Stdout, connection); err != nil {
		log.Fatal(err)
	}
}
