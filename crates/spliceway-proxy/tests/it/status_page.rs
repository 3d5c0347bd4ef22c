//! The status page, in a browser without a screen.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use spliceway_net::has_tool;

use crate::harness::{
    PATIENCE, Program, TextFile, accept, connect, is_closed, let_pass, listen, pattern, read_exactly, refusing,
};

/// A browser that is driven through its pipe (Chrome DevTools protocol).
struct Browser {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    profile: std::path::PathBuf,
    next: u64,
    session: Option<String>,
    /// Messages on the console, and exceptions.
    complaints: Vec<String>,
}

impl Browser {
    /// Starts the browser with a blank page.
    fn start() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let profile = std::env::temp_dir().join(format!("spliceway-browser-{}-{number}", std::process::id()));
        // The browser reads requests from descriptor 3 and writes answers to descriptor 4.
        let script = "exec chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
                      --disable-background-networking --disable-extensions --remote-debugging-pipe \
                      --user-data-dir=\"$0\" about:blank 3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .arg(&profile)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut browser = Self {
            requests: child.stdin.take().unwrap(),
            answers: BufReader::new(child.stdout.take().unwrap()),
            child,
            profile,
            next: 0,
            session: None,
            complaints: Vec::new(),
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({"targetId": target, "flatten": true}));
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        browser.call("Runtime.enable", json!({}));
        browser.call("Log.enable", json!({}));
        browser
    }

    /// Calls a method and returns its result.
    fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let mut request = json!({"id": self.next, "method": method, "params": params});
        if let Some(session) = &self.session {
            request["sessionId"] = session.as_str().into();
        }
        write!(self.requests, "{request}\0").unwrap();
        loop {
            let mut message = Vec::new();
            self.answers.read_until(0, &mut message).unwrap();
            assert!(!message.is_empty(), "the browser ended");
            let mut message: Value = serde_json::from_slice(&message[..message.len() - 1]).unwrap();
            if message["id"] == self.next {
                assert_eq!(message["error"], Value::Null, "{method}");
                return message["result"].take();
            }
            if ["Log.entryAdded", "Runtime.exceptionThrown"]
                .iter()
                .any(|event| message["method"] == *event)
            {
                self.complaints.push(message["params"].to_string());
            }
        }
    }

    /// Returns the value of an expression in the page.
    fn value(&mut self, expression: &str) -> Value {
        let evaluated = self.call(
            "Runtime.evaluate",
            json!({"expression": expression, "returnByValue": true}),
        );
        evaluated["result"]["value"].clone()
    }

    /// Waits until an expression has this value.
    fn await_value(&mut self, expression: &str, expected: &Value) {
        let until = Instant::now() + PATIENCE;
        loop {
            let value = self.value(expression);
            if value == *expected {
                return;
            }
            assert!(
                Instant::now() < until,
                "{expression} is {value}, not {expected}; {:?}",
                self.complaints
            );
            let_pass(Duration::from_millis(20));
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}

/// Returns the head and the body of the answer to a request with this `Host`.
fn get(program: &Program, path: &str, host: &str) -> (String, String) {
    let mut stream = connect(program.metrics());
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[test]
fn the_page_in_a_browser_moves_and_agrees_with_the_metrics() {
    if !has_tool("chromium", "chromium") {
        return;
    }
    let (listener, target) = listen();
    let program = Program::forward(target, &["--status-page"]);
    let mut browser = Browser::start();
    browser.call(
        "Page.navigate",
        json!({"url": format!("http://{}/", program.metrics())}),
    );
    browser.await_value("document.body.dataset.total", &json!("0"));
    let (mut client, mut server) = (program.connect(), accept(&listener));
    let sent = pattern(1, 3 << 20);
    thread::scope(|scope| {
        scope.spawn(|| client.write_all(&sent).unwrap());
        read_exactly(&mut server, sent.len());
    });
    browser.await_value("document.body.dataset.up", &json!(sent.len().to_string()));
    let spliced = program.sum("spliceway_bytes_total", &["path=\"splice\""]);
    assert_eq!(
        browser.value("document.body.dataset.spliced"),
        json!(spliced.to_string())
    );
    assert_eq!(
        program.sum("spliceway_bytes_total", &["direction=\"up\""]),
        sent.len() as u64
    );
    assert_eq!(browser.value("document.body.dataset.active"), json!("1"));
    assert_eq!(
        browser.value("document.getElementById('active').textContent"),
        json!("1")
    );
    browser.await_value("document.querySelectorAll('#throughput polyline').length", &json!(2));
    drop((client, server));
    browser.await_value("document.getElementById('active').textContent", &json!("0"));
    assert_eq!(
        browser.value("document.getElementById('state').textContent"),
        json!("serving")
    );
    // No request went elsewhere, and the policy of the page refused nothing.
    let resources = "performance.getEntriesByType('resource').every((one) => one.name.startsWith(location.origin))";
    assert_eq!(browser.value(resources), json!(true));
    assert_eq!(browser.complaints, [""; 0]);
    // A phone shows the whole width.
    let phone = json!({"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": true});
    browser.call("Emulation.setDeviceMetricsOverride", phone);
    browser.await_value(
        "innerWidth === 360 && document.documentElement.scrollWidth <= 360",
        &json!(true),
    );
}

#[test]
fn the_page_shows_a_dead_service_first_and_since_when_nothing_answers() {
    if !has_tool("chromium", "chromium") {
        return;
    }
    let (_listener, target) = listen();
    let dead = [refusing(), refusing()];
    let program = Program::run(&TextFile::new(&format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\nstatus_page = true\n\
         [[service]]\nname = \"fine\"\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"{target}\"\n\
         [[service]]\nname = \"dead\"\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\n\
         to = [\"{}\", \"{}\"]\ncheck = \"connect\"\ncheck_interval = \"100ms\"\n",
        dead[0], dead[1]
    )));
    let mut browser = Browser::start();
    let url = format!("http://{}/", program.metrics());
    browser.call("Page.navigate", json!({"url": url}));
    let row = "document.querySelector('#services tr').className";
    browser.await_value(row, &json!("first failing"));
    let name = "document.querySelector('#services td').textContent";
    assert_eq!(browser.value(name), json!("dead"));
    let alert = "document.getElementById('alert').textContent";
    assert_eq!(browser.value(alert), json!("Failing: dead (0 of 2 backends up)"));
    assert_eq!(
        browser.value("document.getElementById('state').textContent"),
        json!("1 of 2 services failing")
    );
    drop(program);
    let silent = format!("/^No answer since [0-9:]+. The numbers are old.$/.test({alert})");
    browser.await_value(&silent, &json!(true));
    let state = "/^no answer for [0-9]+s$/.test(document.getElementById('state').textContent)";
    assert_eq!(browser.value(state), json!(true));
    assert_eq!(browser.value("document.body.classList.contains('old')"), json!(true));
}

#[test]
fn a_page_that_opens_later_has_the_seconds_before() {
    let (listener, target) = listen();
    let program = Program::forward(target, &["--status-page"]);
    let until = Instant::now() + PATIENCE;
    let mut sessions = None;
    loop {
        let history: Value = serde_json::from_str(&get(&program, "/history.json", "localhost").1).unwrap();
        let points = history.as_array().unwrap();
        if !points.is_empty() {
            sessions.get_or_insert_with(|| (program.connect(), accept(&listener)));
        }
        if points.len() >= 2 && points.last().unwrap()["open"] == 1 {
            let began: f64 = points.iter().map(|point| point["new"].as_f64().unwrap()).sum();
            assert!((0.5..1.5).contains(&began), "{history}");
            let fields = points[0].as_object().unwrap();
            assert!(
                fields.values().all(|value| value.is_number() || value.is_null()),
                "{history}"
            );
            return;
        }
        assert!(Instant::now() < until, "{history}");
        let_pass(Duration::from_millis(20));
    }
}

#[test]
fn of_many_services_the_page_has_those_that_fail_and_the_first_ones() {
    let mut config = "[admin]\nmetrics = \"127.0.0.1:0\"\nstatus_page = true\n".to_owned();
    let dead = [refusing(), refusing()];
    for number in 0..120 {
        config += &format!(
            "[[service]]\nname = \"s{number}\"\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = [\"{}\", \"{}\"]\n",
            dead[0], dead[1]
        );
    }
    config += "check = \"connect\"\ncheck_interval = \"100ms\"\n";
    let program = Program::run(&TextFile::new(&config));
    let until = Instant::now() + PATIENCE;
    loop {
        let sums: Value = serde_json::from_str(&get(&program, "/status.json", "localhost").1).unwrap();
        let services = sums["services"].as_array().unwrap();
        if services.first().is_some_and(|first| first["health"] == "failing") {
            assert_eq!((services.len(), &sums["services_left_out"]), (100, &json!(20)));
            let names: Vec<_> = services.iter().map(|one| one["name"].as_str().unwrap()).collect();
            assert_eq!((names[0], names[1], names[99]), ("s119", "s0", "s98"));
            return;
        }
        assert!(Instant::now() < until, "{sums}");
        let_pass(Duration::from_millis(20));
    }
}

#[test]
fn the_sums_say_how_many_sessions_failed_and_why() {
    let program = Program::forward(refusing(), &["--status-page"]);
    for _ in 0..3 {
        assert!(is_closed(&mut program.connect()));
    }
    let until = Instant::now() + PATIENCE;
    loop {
        let sums: Value = serde_json::from_str(&get(&program, "/status.json", "localhost").1).unwrap();
        let recent = &sums["services"][0]["recent"];
        if recent["failed"] == 3 {
            assert_eq!(
                recent["reasons"],
                json!([{"reason": "connect_failed:ECONNREFUSED", "count": 3}])
            );
            assert_eq!(sums["services"][0]["health"], "failing");
            assert_eq!(sums["recent"]["failed"], 3);
            assert!(sums["host"].as_str().is_some_and(|host| !host.is_empty()));
            return;
        }
        assert!(Instant::now() < until, "{sums}");
        let_pass(Duration::from_millis(20));
    }
}

#[test]
fn the_page_answers_only_to_its_own_names_and_only_if_asked_for() {
    let (_listener, target) = listen();
    let program = Program::forward(target, &["--status-page", "--status-host", "status.example.com"]);
    for path in ["/", "/status.json", "/history.json"] {
        // Port because the name is not opened.
        for host in ["127.0.0.1:9100", "localhost", "[::1]:80", "status.example.com"] {
            let (head, _) = get(&program, path, host);
            assert!(head.starts_with("HTTP/1.1 200 "), "{path} {host}: {head}");
            assert!(!head.contains("access-control-"), "{head}");
            assert!(head.contains("x-content-type-options: nosniff"), "{head}");
        }
        let (head, body) = get(&program, path, "rebound.example.org");
        assert!(head.starts_with("HTTP/1.1 421 "), "{path}: {head}");
        assert!(body.contains("--status-host"), "{body}");
    }
    let (head, page) = get(&program, "/", "localhost");
    let policy = head
        .lines()
        .find(|line| line.starts_with("content-security-policy: "))
        .unwrap();
    assert!(policy.contains("default-src 'none'; script-src 'nonce-"), "{policy}");
    let nonce = policy.split("'nonce-").nth(1).unwrap().split('\'').next().unwrap();
    assert_eq!(page.matches(&format!("nonce=\"{nonce}\"")).count(), 2);
    let (other, _) = get(&program, "/", "localhost");
    assert!(!other.contains(nonce), "each answer has another nonce");
    let plain = Program::forward(target, &[]);
    for path in ["/", "/status.json", "/history.json"] {
        assert!(get(&plain, path, "localhost").0.starts_with("HTTP/1.1 404 "), "{path}");
    }
}

#[test]
fn the_page_shows_sums_and_no_client_user_or_target() {
    let (listener, target) = listen();
    let program = Program::socks5(&["--status-page", "--auth", "ann-the-user:secret"]);
    let mut client = program.connect();
    client.write_all(&[5, 1, 2]).unwrap();
    read_exactly(&mut client, 2);
    client.write_all(b"\x01\x0cann-the-user\x06secret").unwrap();
    read_exactly(&mut client, 2);
    client.write_all(&[5, 1, 0, 1, 127, 0, 0, 1]).unwrap();
    client.write_all(&target.port().to_be_bytes()).unwrap();
    let _server = accept(&listener);
    read_exactly(&mut client, 10);
    let until = Instant::now() + PATIENCE;
    loop {
        let sums: Value = serde_json::from_str(&get(&program, "/status.json", "localhost").1).unwrap();
        if sums["sessions"]["active"] == 1 {
            let text = sums.to_string();
            let secrets = [
                "ann",
                "secret",
                "127.0.0.1",
                &client.local_addr().unwrap().port().to_string(),
            ];
            assert!(secrets.iter().all(|secret| !text.contains(secret)), "{text}");
            return;
        }
        assert!(Instant::now() < until, "{sums}");
        let_pass(Duration::from_millis(20));
    }
}
