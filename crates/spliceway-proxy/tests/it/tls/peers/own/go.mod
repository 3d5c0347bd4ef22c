module spliceway/peer

go 1.18
