# Sends standard input through a proxy with IO::Socket::Socks, and writes the reply to standard
# output.
use strict;
use warnings;

use IO::Socket::Socks;

my ($kind, $proxy_host, $proxy_port, $user, $password, $host, $port) = @ARGV;
my %proxy = (ProxyAddr => $proxy_host, ProxyPort => $proxy_port, SocksVersion => $kind eq 'socks5' ? 5 : 4);
if ($user ne '') {
    %proxy = (%proxy, AuthType => 'userpass', Username => $user, Password => $password);
}
# By default, this module sends names and also addresses to the proxy as names.
my $socket = IO::Socket::Socks->new(
    %proxy,
    ConnectAddr  => $host,
    ConnectPort  => $port,
    SocksResolve => $kind ne 'socks4',
    Timeout      => 20,
) or die "$SOCKS_ERROR\n";

binmode $_ for \*STDIN, \*STDOUT, $socket;
{
    local $/ = \262144;
    while (my $part = <STDIN>) { print {$socket} $part or die "cannot send: $!\n"; }
    shutdown $socket, 1 or die "cannot shut down: $!\n";
    while (my $part = <$socket>) { print $part or die "cannot write: $!\n"; }
}
