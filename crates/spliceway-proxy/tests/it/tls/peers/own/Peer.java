import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.Security;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLServerSocket;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManagerFactory;

/**
 * An end of TLS with the library of Java. It sends what it reads on stdin, and prints what it
 * receives. The end of stdin is the end of its side alone. It changes its keys after each 200,000
 * bytes that it sends.
 *
 * <pre>
 *   Peer client ADDRESS CA NAME      connects
 *   Peer server CERTIFICATE KEY      prints `ACCEPT ADDRESS`, and serves one connection
 * </pre>
 */
public final class Peer {
    private static final char[] NO_PASSWORD = {};

    public static void main(String[] arguments) {
        // Else Java takes a FIN for a regular end.
        System.setProperty("com.sun.net.ssl.requireCloseNotify", "true");
        // The default is 128 GiB.
        Security.setProperty(
                "jdk.tls.keyLimits",
                "AES/GCM/NoPadding KeyUpdate 200000, ChaCha20-Poly1305 KeyUpdate 200000");
        try {
            if (arguments[0].equals("client")) {
                client(arguments[1], arguments[2], arguments[3]);
            } else {
                server(arguments[1], arguments[2]);
            }
        } catch (Exception error) {
            System.err.println("error: " + error);
            System.exit(1);
        }
        System.exit(0);
    }

    private static void client(String address, String ca, String name) throws Exception {
        KeyStore trusted = emptyStore();
        trusted.setCertificateEntry("ca", certificate(ca));
        TrustManagerFactory trust = TrustManagerFactory.getInstance("PKIX");
        trust.init(trusted);
        SSLContext context = SSLContext.getInstance("TLSv1.3");
        context.init(null, trust.getTrustManagers(), null);
        int colon = address.lastIndexOf(':');
        byte[] host = InetAddress.getByName(address.substring(0, colon)).getAddress();
        int port = Integer.parseInt(address.substring(colon + 1));
        SSLSocket socket = (SSLSocket)
                context.getSocketFactory().createSocket(InetAddress.getByAddress(name, host), port);
        var parameters = socket.getSSLParameters();
        parameters.setEndpointIdentificationAlgorithm("HTTPS");
        socket.setSSLParameters(parameters);
        relay(socket);
    }

    private static void server(String certificate, String key) throws Exception {
        String text = Files.readString(Path.of(key)).replaceAll("-----[A-Z ]+-----|\\s", "");
        var spec = new PKCS8EncodedKeySpec(Base64.getDecoder().decode(text));
        KeyStore own = emptyStore();
        Certificate[] chain = {certificate(certificate)};
        own.setKeyEntry("own", KeyFactory.getInstance("EC").generatePrivate(spec), NO_PASSWORD, chain);
        KeyManagerFactory keys = KeyManagerFactory.getInstance("PKIX");
        keys.init(own, NO_PASSWORD);
        SSLContext context = SSLContext.getInstance("TLSv1.3");
        context.init(keys.getKeyManagers(), null, null);
        InetAddress loopback = InetAddress.getByAddress(new byte[] {127, 0, 0, 1});
        try (var listener =
                (SSLServerSocket) context.getServerSocketFactory().createServerSocket(0, 1, loopback)) {
            System.out.println("ACCEPT 127.0.0.1:" + listener.getLocalPort());
            relay((SSLSocket) listener.accept());
        }
    }

    private static KeyStore emptyStore() throws Exception {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, NO_PASSWORD);
        return store;
    }

    private static Certificate certificate(String path) throws Exception {
        byte[] pem = Files.readString(Path.of(path)).getBytes(StandardCharsets.US_ASCII);
        return CertificateFactory.getInstance("X.509")
                .generateCertificate(new java.io.ByteArrayInputStream(pem));
    }

    /** Copies both ways, until both sides have ended. */
    private static void relay(SSLSocket socket) throws Exception {
        socket.startHandshake();
        System.err.println("protocol: " + socket.getSession().getProtocol());
        Thread sender = new Thread(() -> {
            try {
                copy(System.in, socket.getOutputStream());
                socket.shutdownOutput();
            } catch (IOException error) {
                System.err.println("error: cannot send: " + error);
                System.exit(1);
            }
        });
        sender.start();
        copy(socket.getInputStream(), System.out);
        System.err.println("received the end");
        sender.join();
        socket.close();
    }

    private static void copy(InputStream from, OutputStream to) throws IOException {
        byte[] bytes = new byte[1 << 16];
        for (int read; (read = from.read(bytes)) >= 0; to.flush()) {
            to.write(bytes, 0, read);
        }
    }
}
