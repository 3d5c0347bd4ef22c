// Sends standard input through a proxy, and writes the reply to standard output.
// golang.org/x/net/proxy speaks `socks5`. With `http`, net/http sends a POST with the URL in
// absolute form to the proxy.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"golang.org/x/net/proxy"
)

const patience = 20 * time.Second

func main() {
	log.SetFlags(0)
	if len(os.Args) != 8 {
		log.Fatal("expected: KIND PROXY-HOST PROXY-PORT USER PASSWORD HOST PORT")
	}
	kind, through := os.Args[1], net.JoinHostPort(os.Args[2], os.Args[3])
	user, password, target := os.Args[4], os.Args[5], net.JoinHostPort(os.Args[6], os.Args[7])
	var err error
	switch kind {
	case "socks5":
		err = socks5(through, user, password, target)
	case "http":
		err = post(through, user, password, target)
	default:
		err = fmt.Errorf("no such protocol: %s", kind)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func socks5(through, user, password, target string) error {
	var auth *proxy.Auth
	if user != "" {
		auth = &proxy.Auth{User: user, Password: password}
	}
	dialer, err := proxy.SOCKS5("tcp", through, auth, &net.Dialer{Timeout: patience})
	if err != nil {
		return err
	}
	conn, err := dialer.Dial("tcp", target)
	if err != nil {
		return err
	}
	defer conn.Close()
	upload, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	if _, err = conn.Write(upload); err != nil {
		return err
	}
	if err = conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, conn)
	return err
}

func post(through, user, password, target string) error {
	address := &url.URL{Scheme: "http", Host: through}
	if user != "" {
		address.User = url.UserPassword(user, password)
	}
	client := http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(address)}, Timeout: patience}
	response, err := client.Post("http://"+target+"/exchange", "application/octet-stream", os.Stdin)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer is %s", response.Status)
	}
	_, err = io.Copy(os.Stdout, response.Body)
	return err
}
