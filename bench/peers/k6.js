// The published experiment: fetches 100 MB over HTTP, each time on a new connection. Prints MB/s.
import http from 'k6/http';

export const options = { vus: 1, duration: '3s', noConnectionReuse: true, discardResponseBodies: true };

export default function () {
  http.get(`http://${__ENV.TARGET}/large`);
}

export function handleSummary(data) {
  const failed = data.metrics.http_req_failed.values.rate;
  const rate = data.metrics.data_received.values.count / 1e3 / data.state.testRunDurationMs;
  return { stdout: failed === 0 ? `rate ${rate}\n` : `${failed} of the requests failed\n` };
}
