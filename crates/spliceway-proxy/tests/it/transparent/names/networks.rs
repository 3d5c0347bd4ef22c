//! Rules by name for clients of several networks.

use super::*;
use crate::harness::{TextFile, assert_same, pattern};
use crate::transparent::dns::Asker;

#[test]
fn redirected_clients_reach_the_names_of_their_network() {
    const BULK: usize = 8_000_000;
    let Some(guarded) = Guarded::new() else { return };
    let config = TextFile::new(
        "[admin]\nmetrics = \"127.0.0.1:0\"\n\
         [[client]]\nname = \"four\"\nfrom = \"10.77.0.0/24\"\nto_allow = \"good.test:443\"\nrate_in = \"10GB\"\n\
         [[client]]\nname = \"six\"\nfrom = \"2001:db8::/64\"\nto_allow = \"good6.test:443\"\n\
         [[service]]\nkind = \"transparent\"\nlisten = \":0\"\nnames = true\nclients = \"required\"\n\
         dns_listen = \"10.77.0.2:53\"\ndns = \"127.0.0.2\"\nallow_private = [\"10.77.1.0/24\", \"2001:db8:1::/64\"]\nto_allow = \"evil.test\"\n",
    );
    let mut program = guarded.network.at_gateway(|| Program::run(&config));
    let rule = format!("iifname left meta l4proto tcp redirect to :{}", program.address.port());
    guarded
        .network
        .rule("redirected", "nat hook prerouting priority dstnat", &rule);
    let (good, six) = (guarded.listen(GOOD, 443), guarded.listen(GOOD_V6, 443));
    let other = guarded.listen(OTHER, 443);
    for (dialled, user, name, allowed) in [
        (format!("{OTHER}:443"), "four", "good.test", Some(&good)),
        (format!("{OTHER}:443"), "four", "good6.test", None),
        (format!("{OTHER}:443"), "four", "evil.test", None),
        (format!("[{OTHER_V6}]:443"), "six", "good6.test", Some(&six)),
        (format!("[{OTHER_V6}]:443"), "six", "good.test", None),
    ] {
        let client = guarded.connect(&dialled);
        let (hello, of_user) = (named(name), format!(" user=\"{user}\" "));
        let Some(listener) = allowed else {
            (&client).write_all(&hello).unwrap();
            assert_eq!(read_all(&client), alert(112));
            let record = program.line("end=denied:target_rule");
            let cause = format!("no rule allows {name}:443");
            assert!(record.contains(&of_user) && record.contains(&cause), "{record}");
            continue;
        };
        let (up, down) = ([&hello[..], &pattern(1, BULK)].concat(), pattern(2, BULK));
        std::thread::scope(|scope| {
            scope.spawn(|| send_and_finish(&client, &up));
            let server = accept(listener);
            assert_same(&read_all(&server), &up);
            scope.spawn(move || send_and_finish(&server, &down));
            assert_same(&read_all(&client), &pattern(2, BULK));
        });
        drop(client);
        let record = program.line("end=");
        assert!(record.contains(&of_user), "{record}");
        for direction in ["up", "down"] {
            let field = format!("spliced_{direction}=");
            let spliced = record.split_once(&field).unwrap().1.split(' ').next().unwrap();
            let spliced: usize = spliced.parse().unwrap();
            assert!(spliced >= BULK / 100 * 95, "{record}");
        }
    }
    assert!(!was_reached(&other));
    // The rules of a network apply to its queries, in place of the rules of the service.
    let asker = Asker::of(&guarded, "10.77.0.1:0", "10.77.0.2:53".parse().unwrap());
    assert_eq!(asker.addresses("good.test."), [GOOD]);
    assert_eq!(asker.addresses("evil.test."), [""; 0]);
    guarded.network.at_gateway(|| {
        program.await_sum("spliceway_user_refused_total", &["user=\"four\""], 2);
        program.await_sum("spliceway_user_refused_total", &["user=\"six\""], 1);
    });
}
