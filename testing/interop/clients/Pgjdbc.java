import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.Properties;

/** Asks a server of PostgreSQL for its port by pgjdbc, and passes a large value both ways. */
public class Pgjdbc {
    public static void main(String[] words) throws Exception {
        String name = words[0], port = words[1], how = words[3];
        var options = new Properties();
        options.setProperty("user", "app");
        options.setProperty("password", "secret");
        options.setProperty("sslmode", how.equals("disable") ? "disable" : "verify-full");
        options.setProperty("sslrootcert", words[2]);
        options.setProperty("connectTimeout", "20");
        if (how.equals("binding")) {
            options.setProperty("channelBinding", "require");
        }
        if (how.equals("direct")) {
            options.setProperty("sslNegotiation", "direct");
        }
        var url = "jdbc:postgresql://" + name + ":" + port + "/postgres";
        try (var server = DriverManager.getConnection(url, options)) {
            if (how.equals("cancel")) {
                try (var query = server.createStatement()) {
                    query.setQueryTimeout(1);
                    query.execute("select pg_sleep(60)");
                    throw new IllegalStateException("the query has ended");
                } catch (SQLException error) {
                    // The server has cancelled it.
                    if (!"57014".equals(error.getSQLState())) {
                        throw error;
                    }
                }
            }
            try (var query = server.prepareStatement("select current_setting('port'), ?::text")) {
                query.setString(1, "x".repeat(Integer.parseInt(words[4])));
                var row = query.executeQuery();
                row.next();
                System.out.println(row.getString(1));
                System.out.println(row.getString(2).length());
            }
        }
    }
}
