"""Uses the client that openapi-python-client has generated, in `spliceway_client`."""

import json
import sys

from spliceway_client import AuthenticatedClient
from spliceway_client.api.log_level import get_log_level, put_log_level
from spliceway_client.api.services import delete_service, get_service, get_services, patch_service, put_service
from spliceway_client.api.services import post_service_drain, put_service_backend, put_service_backend_weight
from spliceway_client.api.sessions import delete_session, get_sessions
from spliceway_client.api.status import get_status
from spliceway_client.models import Level, LevelLevel, Service, ServiceChanges, Weight


def main():
    url, tokens = sys.argv[1:]
    tokens = json.loads(tokens)
    with AuthenticatedClient(url, tokens["all"]) as client:
        use(client)
    with AuthenticatedClient(url, tokens["reader"]) as client:
        assert get_status.sync(client=client).ready
        answer = put_log_level.sync_detailed(client=client, body=Level(level=LevelLevel.DEBUG))
        assert answer.status_code == 403 and "`write`" in answer.parsed.error, answer
    with AuthenticatedClient(url, "none") as client:
        assert get_status.sync_detailed(client=client).status_code == 401


def use(client):
    status = get_status.sync(client=client)
    assert status.state == "serving" and status.services[0].name == "forward", status
    body = Service.from_dict({"kind": "forward", "listen": "127.0.0.1:0", "to": ["127.0.0.1:9", "127.0.0.1:19"]})
    added = put_service.sync_detailed("web", client=client, body=body, if_none_match="*")
    assert added.status_code == 201 and added.parsed.done.startswith("added web; listens on"), added
    again = put_service.sync_detailed("web", client=client, body=body, if_none_match="*")
    assert again.status_code == 412 and "there is a service" in again.parsed.error, again
    assert [service.name for service in get_services.sync(client=client).services] == ["forward", "web"]
    etag = added.headers["etag"]
    deny = ServiceChanges.from_dict({"deny": ["192.0.2.0/24"]})
    dry = patch_service.sync("web", client=client, body=deny, dry_run=True, if_match=etag)
    assert dry.done == "dry run: changed web", dry
    assert patch_service.sync("web", client=client, body=deny, dry_run=False).done == "changed web"
    assert get_service.sync("web", client=client).deny == ["192.0.2.0/24"]
    none = ServiceChanges.from_dict({"deny": None})
    assert patch_service.sync("web", client=client, body=none).done == "changed web"
    assert put_service_backend.sync("web", "127.0.0.1:29", client=client).done == "changed web"
    for weight in (0, None):
        done = put_service_backend_weight.sync("web", "127.0.0.1:29", client=client, body=Weight(weight=weight)).done
        assert done.startswith("backend 127.0.0.1:29 has the weight"), done
    wrong = put_service.sync_detailed("x", client=client, body=Service.from_dict({"kind": "none", "listen": ":1"}))
    assert wrong.status_code == 422 and "kind" in wrong.parsed.error, wrong
    assert post_service_drain.sync("web", client=client).done == "web accepts no new clients"
    assert delete_service.sync("web", client=client).done.startswith("removed web")
    assert get_service.sync_detailed("web", client=client).status_code == 404
    assert get_sessions.sync(client=client, limit=1).sessions == []
    assert "no session" in delete_session.sync(7, client=client).error
    assert put_log_level.sync(client=client, body=Level(level=LevelLevel.DEBUG)).level == LevelLevel.DEBUG
    assert get_log_level.sync(client=client).level == LevelLevel.DEBUG


if __name__ == "__main__":
    main()
