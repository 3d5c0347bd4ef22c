// Asks a server of PostgreSQL for its port by pgx, and passes a large value both ways.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 6 {
		log.Fatal("expected: NAME PORT AUTHORITY HOW SIZE")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	if err := ask(ctx, os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]); err != nil {
		log.Fatal(err)
	}
}

func ask(ctx context.Context, name, port, authority, how, size string) error {
	mode := "verify-full"
	if how == "disable" {
		mode = "disable"
	}
	text := fmt.Sprintf("host=%s port=%s user=app password=secret dbname=postgres sslmode=%s sslrootcert=%s",
		name, port, mode, authority)
	if how == "direct" {
		text += " sslnegotiation=direct"
	}
	config, err := pgx.ParseConfig(text)
	if err != nil {
		return err
	}
	// The name of the server leads to the program.
	config.LookupFunc = func(context.Context, string) ([]string, error) {
		return []string{"127.0.0.1"}, nil
	}
	server, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer server.Close(ctx)
	if how == "cancel" {
		if err := cancelQuery(ctx, server); err != nil {
			return err
		}
	}
	var own string
	if err := server.QueryRow(ctx, "select current_setting('port')").Scan(&own); err != nil {
		return err
	}
	bytes, err := strconv.Atoi(size)
	if err != nil {
		return err
	}
	var value string
	if err := server.QueryRow(ctx, "select $1::text", strings.Repeat("x", bytes)).Scan(&value); err != nil {
		return err
	}
	_, err = fmt.Printf("%s\n%d\n", own, len(value))
	return err
}

// Ends a query by a connection of its own.
func cancelQuery(ctx context.Context, server *pgx.Conn) error {
	sent := make(chan error, 1)
	go func() {
		time.Sleep(time.Second)
		sent <- server.PgConn().CancelRequest(ctx)
	}()
	_, err := server.Exec(ctx, "select pg_sleep(60)")
	if err := <-sent; err != nil {
		return err
	}
	var told *pgconn.PgError
	if errors.As(err, &told) && told.Code == "57014" {
		return nil
	}
	return fmt.Errorf("the query was not cancelled: %w", err)
}
