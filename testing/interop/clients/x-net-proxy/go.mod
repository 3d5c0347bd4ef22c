module spliceway/testing/interop/x-net-proxy

go 1.18

require golang.org/x/net v0.35.0
