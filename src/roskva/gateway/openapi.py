"""The OpenAPI document of the HTTP routes. A test compares it with the routes that are served."""

from __future__ import annotations

from typing import Any, Final

_ERROR: Final = {"$ref": "#/components/schemas/Error"}
_FREE: Final = {"type": "object", "additionalProperties": True}


def _json(about: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"schema": schema}}}


def _text(about: str, content_type: str) -> dict[str, Any]:
    return {"description": about, "content": {content_type: {"schema": {"type": "string"}}}}


def _get(summary: str, answers: dict[str, Any], parameters: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": summary, "responses": answers}
    if parameters:
        operation["parameters"] = parameters
    return {"get": operation}


def _post(summary: str, request: str, answer: str) -> dict[str, Any]:
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{request}"}}}},
            "responses": {
                "200": _json("It is durable.", {"$ref": f"#/components/schemas/{answer}"}),
                "400": _json("The request is malformed.", _ERROR),
                "404": _json("The application is not known.", _ERROR),
                "413": _json("The body is over 16 KiB.", _ERROR),
                "429": _json("More than ten invalidations a second of one application; try again after retry_after_s.", _ERROR),
                "503": _json("It may or may not have landed: repeat it.", _ERROR),
            },
        }
    }


def _parameter(name: str, where: str, about: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": where, "description": about, "required": where == "path", "schema": schema}


_VERSION: Final = {
    "description": "0 to 9223372036854775807, as a number or in decimal digits.",
    "oneOf": [{"type": "integer", "minimum": 0, "maximum": 2**63 - 1}, {"type": "string", "pattern": "^[0-9]{1,19}$"}],
}
_UPDATE_FIELDS: Final = {
    "object": {"type": "string", "description": "The object's name: UTF-8 text of 1 to 128 bytes, or base64: and base64url."},
    "version": _VERSION,
    "source": {"type": ["string", "null"], "description": "The device that made the change, and needs no notification of it."},
}
_APPLICATION: Final = {"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,63}$"}

_PAGE: Final = [
    _parameter("after", "query", "The `next` of the page before.", {"type": "string"}),
    _parameter("limit", "query", "At most so many.", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}),
]

_CHANNEL: Final = _parameter("id", "path", "As the opening gave it.", {"type": "string"})
_CLOSED: Final = _json("The channel is closed or not known: open a new one.", _ERROR)
_DONE: Final = {"description": "It is done."}


def _messages(summary: str) -> dict[str, Any]:
    return {
        "summary": summary,
        "parameters": [_CHANNEL],
        "requestBody": {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}},
        "responses": {
            "204": {"description": "They are taken; what is wrong with one of them is told over the channel."},
            "400": _json("More than 100 messages.", _ERROR),
            "410": _CLOSED,
            "413": _json("The body is over `message_bytes_max`.", _ERROR),
        },
    }


def _channels() -> dict[str, Any]:
    """The polled connections; docs/protocol.md describes what is said over them."""
    wait = _parameter("wait_s", "query", "How long to wait at most.", {"type": "integer", "minimum": 1, "maximum": 50, "default": 50})
    fetch = {
        "200": _text("Messages, one to a line.", "application/x-ndjson"),
        "204": {"description": "Nothing came, or a newer request fetches now."},
        "410": _CLOSED,
    }
    return {
        "/v1/channels": {
            "post": {
                "summary": "Open a channel that is fetched: by long polls, or as server-sent events.",
                "responses": {
                    "201": _json("It is open.", {"$ref": "#/components/schemas/Opened"}),
                    "503": _json("There are as many connections as allowed.", _ERROR),
                },
            }
        },
        "/v1/channels/{id}": {
            **_get("Fetch what the server says: at once if something waits, else when something comes.", fetch, [_CHANNEL, wait]),
            "post": _messages("Say something: one message to a line."),
            "delete": {"summary": "Close it.", "parameters": [_CHANNEL], "responses": {"204": _DONE}},
        },
        "/v1/channels/{id}/events": _get(
            "What the server says as server-sent events: one message each; `closed` is the last.",
            {"200": _text("A stream that does not end.", "text/event-stream"), "410": _CLOSED},
            [_CHANNEL],
        ),
        "/v1/channels/{id}/close": {"post": _messages("Close it, after last messages: for navigator.sendBeacon.")},
    }


_SCHEMAS: Final[dict[str, Any]] = {
    "Opened": {
        "type": "object",
        "required": ["id", "wait_s", "idle_s"],
        "properties": {
            "id": {"type": "string", "description": "Names the channel; a secret of its client."},
            "wait_s": {"type": "number", "description": "A fetch is answered after so long, with nothing."},
            "idle_s": {"type": "number", "description": "Without a fetch for so long, it is closed."},
        },
    },
    "Update": {
        "type": "object",
        "required": ["object", "version"],
        "properties": _UPDATE_FIELDS,
        "additionalProperties": False,
    },
    "PublishRequest": {
        "oneOf": [
            {
                "type": "object",
                "required": ["application", "updates"],
                "properties": {
                    "application": _APPLICATION,
                    "updates": {"type": "array", "items": {"$ref": "#/components/schemas/Update"}},
                },
                "additionalProperties": False,
            },
            {
                "type": "object",
                "required": ["application", "object", "version"],
                "properties": {"application": _APPLICATION, **_UPDATE_FIELDS},
                "additionalProperties": False,
            },
            {
                "type": "object",
                "required": ["application", "raw"],
                "properties": {
                    "application": _APPLICATION,
                    "raw": {
                        "type": "array",
                        "items": {},
                        "description": "Updates in the application's own form, kept as they are.",
                    },
                },
                "additionalProperties": False,
            },
        ]
    },
    "PublishAnswer": {
        "type": "object",
        "required": ["results"],
        "properties": {
            "results": {
                "type": "array",
                "description": 'One for each update, in their order: {"ok": true} when it is durable, or its error.',
                "items": {
                    "type": "object",
                    "properties": {"ok": {"const": True}, "error": {"$ref": "#/components/schemas/ErrorObject"}},
                },
            },
            "error": {"$ref": "#/components/schemas/ErrorObject"},
        },
    },
    "ResetRequest": {
        "type": "object",
        "required": ["application"],
        "properties": {"application": _APPLICATION},
        "additionalProperties": False,
    },
    "ResetAnswer": {
        "type": "object",
        "required": ["application", "epoch"],
        "properties": {"application": _APPLICATION, "epoch": {"type": "integer", "description": "The one that now holds."}},
    },
    "EraseRequest": {
        "type": "object",
        "required": ["application", "user"],
        "properties": {
            "application": _APPLICATION,
            "user": {"type": "string", "minLength": 1, "description": "As credentials name it: `sub` of a JSON Web Token."},
            "after": {"type": "string", "description": "The `next` of the answer before."},
        },
        "additionalProperties": False,
    },
    "EraseAnswer": {
        "type": "object",
        "required": ["application", "user", "erased", "failed", "next"],
        "properties": {
            "application": _APPLICATION,
            "user": {"type": "string"},
            "erased": {"type": "integer"},
            "failed": {"type": "integer", "description": "Those that could not be erased now: ask again from the beginning."},
            "next": {"type": "string", "description": "Where to go on; empty: all clients were looked at."},
        },
    },
    "InvalidateRequest": {
        "type": "object",
        "required": ["application"],
        "properties": {
            "application": _APPLICATION,
            "object": {"type": "string", "description": "One object, by its name in text form."},
            "prefix": {"type": "string", "description": "All whose names begin so. Neither of the two: all of the application."},
        },
        "additionalProperties": False,
    },
    "InvalidateAnswer": {
        "type": "object",
        "required": ["application", "accepted", "epoch", "time_ms"],
        "properties": {
            "application": _APPLICATION,
            "accepted": {"const": True},
            "epoch": {"type": "integer"},
            "time_ms": {"type": "integer", "description": "When it was durable. It is told when, later, no fan-outs are behind."},
        },
    },
    "ErrorObject": {
        "type": "object",
        "required": ["code", "message", "transient", "retry_after_s"],
        "properties": {
            "code": {"type": "string", "description": "One of docs/errors.md."},
            "message": {"type": "string", "description": "For a person: what happened, to what, and what to do."},
            "transient": {"type": "boolean", "description": "Whether the same call may succeed later."},
            "retry_after_s": {"type": "number"},
        },
    },
    "Error": {"type": "object", "required": ["error"], "properties": {"error": {"$ref": "#/components/schemas/ErrorObject"}}},
    "ObjectVersion": {
        "type": "object",
        "required": ["application", "object", "version", "version_text", "source", "epoch"],
        "properties": {
            "application": _APPLICATION,
            "object": {"type": "string"},
            "version": {"type": "integer"},
            "version_text": {"type": "string", "description": "The same in decimal digits."},
            "source": {"type": ["string", "null"]},
            "epoch": {"type": "integer"},
        },
    },
    "Latency": {
        "type": "object",
        "required": ["member", "since_ms", "stamps_per_s", "sampled", "backwards", "ways"],
        "properties": {
            "member": {"type": "string"},
            "since_ms": {"type": "integer", "description": "When the gateway started."},
            "stamps_per_s": {"type": "number", "description": "How many updates are sampled at most."},
            "sampled": {"type": "integer", "description": "How many were."},
            "backwards": {"type": "integer", "description": "Times below 0, which are in no histogram."},
            "ways": {
                "type": "object",
                "description": "By way (accept, fast, pipeline, fan-out) and hop.",
                "additionalProperties": {"type": "object", "additionalProperties": {"$ref": "#/components/schemas/Times"}},
            },
        },
    },
    "Times": {
        "type": "object",
        "required": ["count", "sum_us", "max_us", "buckets"],
        "properties": {
            "count": {"type": "integer"},
            "sum_us": {"type": "integer"},
            "max_us": {"type": "integer"},
            "buckets": {
                "type": "array",
                "description": "[largest time in microseconds, count], those without any left out; not cumulative.",
                "items": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
            },
        },
    },
    "DeadLetters": {
        "type": "object",
        "required": ["letters", "next"],
        "properties": {
            "letters": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "topic": {"type": "string"},
                        "partition": {"type": "integer"},
                        "offset": {"type": "integer"},
                        "time_ms": {"type": "integer"},
                        "application": {"type": "string"},
                        "reason": {"type": "string"},
                        "code": {"type": "string"},
                        "value": {"type": "string"},
                    },
                },
            },
            "next": {"type": "string", "description": "Give it as `after` to get what comes later."},
        },
    },
}


_KEYS: Final = {
    "operator": {"type": "http", "scheme": "bearer", "description": "The key `admin` of keys.json."},
    "backend": {"type": "http", "scheme": "bearer", "description": "A publish key of the application, if it has any; or the operators'."},
    "trusted": {"type": "http", "scheme": "bearer", "description": "The key `trusted` of keys.json."},
}
_FOR: Final = {
    "operator": ("/v1/reset", "/v1/erase", "/v1/inspect/", "/v1/status", "/v1/dead-letters", "/metrics"),
    "backend": ("/v1/publish", "/v1/invalidate", "/v1/objects/"),
    "trusted": ("/v1/trusted",),
}


def _say_who_may(paths: dict[str, Any]) -> None:
    """Who must show which key, and what every route refuses before it looks at anything else."""
    for path, operations in paths.items():
        needed = [who for who, prefixes in _FOR.items() if path.startswith(prefixes)]
        for operation in operations.values():
            answers = operation["responses"]
            answers["403"] = _json("A page of another origin, which no application lists.", _ERROR)
            answers["415"] = _json("The request has a Content-Encoding: nothing is unpacked.", _ERROR)
            if needed:
                answers["401"] = _json("The key was not shown.", _ERROR)
                operation["security"] = [{who: []} for who in needed] + ([{}] if needed == ["backend"] else [])


def document(release: str) -> dict[str, Any]:
    answer = {"$ref": "#/components/schemas/PublishAnswer"}
    paths: dict[str, Any] = {
        "/v1/publish": {
            "post": {
                "summary": "Publish one update or a batch; answered when they are durable.",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/PublishRequest"}}},
                },
                "responses": {
                    "200": _json("At least one update is durable; the results say which.", answer),
                    "400": _json("The request, or every update of it, is malformed.", {"anyOf": [answer, _ERROR]}),
                    "404": _json("The application is not known.", _ERROR),
                    "413": _json("The body, or the number of updates, is over the limit.", _ERROR),
                    "429": _json("More than `publishes_per_s_max`; try again after retry_after_s.", _ERROR),
                    "503": _json("Nothing was accepted; try again after retry_after_s.", {"anyOf": [answer, _ERROR]}),
                },
            }
        },
        "/v1/reset": _post(
            "Raise the application's epoch: lower versions count again, and everyone registered is told unknown.",
            "ResetRequest",
            "ResetAnswer",
        ),
        "/v1/invalidate": _post(
            "Tell everyone registered for an object, for those whose names begin alike, or for any of the application, unknown.",
            "InvalidateRequest",
            "InvalidateAnswer",
        ),
        "/v1/erase": _post(
            "Collect the clients of one user, online or not, for so long as a request may take; `next` says where to go on.",
            "EraseRequest",
            "EraseAnswer",
        ),
        "/v1/objects/{application}/{name}": _get(
            "The version of an object that the Matcher knows.",
            {
                "200": _json("The version.", {"$ref": "#/components/schemas/ObjectVersion"}),
                "400": _json("The name cannot be used.", _ERROR),
                "404": _json("No such application, or no version of the object is known.", _ERROR),
            },
            [
                _parameter("application", "path", "The application.", _APPLICATION),
                _parameter("name", "path", "The object's name in its text form, percent-encoded.", {"type": "string"}),
            ],
        ),
        "/v1/inspect/users/{application}/{user}": _get(
            "The clients of one user: looks at all clients' rows, so many for a request; a page may be empty and not the last.",
            {
                "200": _json("A page of them, and `next`, which is empty after the last.", _FREE),
                "400": _json("The cursor or the limit is malformed.", _ERROR),
                "404": _json("There is no such application.", _ERROR),
                "503": _json("Others are looking; try again after retry_after_s.", _ERROR),
            },
            [
                _parameter("application", "path", "The application.", _APPLICATION),
                _parameter("user", "path", "The user, percent-encoded.", {"type": "string"}),
                *_PAGE,
            ],
        ),
        "/v1/inspect/clients/{id}": _get(
            "One client: session, presence, registrations, what is on its way, what it has not acknowledged and since when.",
            {
                "200": _json("What is known of it.", _FREE),
                "400": _json("The cursor or the limit is malformed.", _ERROR),
                "404": _json("There is no such client.", _ERROR),
            },
            [_parameter("id", "path", "The client's id.", {"type": "string"}), *_PAGE],
        ),
        "/v1/inspect/objects/{application}/{name}": _get(
            "One object: its version, and, page by page of its clients, who has not acknowledged it and since when.",
            {
                "200": _json("What is known of it.", _FREE),
                "400": _json("The name, the cursor or the limit cannot be used.", _ERROR),
                "404": _json("There is no such application.", _ERROR),
            },
            [
                _parameter("application", "path", "The application.", _APPLICATION),
                _parameter("name", "path", "The object's name in its text form, percent-encoded.", {"type": "string"}),
                *_PAGE,
            ],
        ),
        "/v1/inspect/latency": _get(
            "Where the time of sampled updates went at one gateway, by way and hop; histograms of several gateways add up.",
            {"200": _json("Counts by the largest time of each bucket, in microseconds.", {"$ref": "#/components/schemas/Latency"})},
            [_parameter("member", "query", "The gateway that is meant, by its id; else whichever answers.", {"type": "string"})],
        ),
        "/v1/channel": _get(
            "The WebSocket of clients; docs/protocol.md describes what is said on it.",
            {
                "101": {"description": "Text frames of JSON from here on."},
                "426": _json("The request does not ask for a WebSocket.", _ERROR),
            },
        ),
        **_channels(),
        "/v1/trusted": _get(
            "The WebSocket of a trusted server, over which it carries many clients.",
            {
                "101": {"description": "Text frames of a number, a space and a message from here on."},
                "426": _json("The request does not ask for a WebSocket.", _ERROR),
            },
            [_parameter("keepalive", "query", "`line`: one keepalive for all clients, instead of one for each.", {"type": "string"})],
        ),
        "/v1/status": _get("Members, what gateways hold, the pipeline's progress and the feed.", {"200": _json("The status.", _FREE)}),
        "/v1/dead-letters": _get(
            "Updates that could not be used, with the reason.",
            {
                "200": _json("A page of them.", {"$ref": "#/components/schemas/DeadLetters"}),
                "400": _json("The cursor or the limit is malformed.", _ERROR),
            },
            [
                _parameter("after", "query", "The `next` of the page before.", {"type": "string"}),
                _parameter("limit", "query", "At most so many.", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}),
            ],
        ),
        "/v1/openapi.json": _get("This document.", {"200": _json("OpenAPI 3.1.", _FREE)}),
        "/healthz": _get("Whether the process lives.", {"200": _json("It does.", _FREE)}),
        "/readyz": _get(
            "Whether it can serve clients.",
            {"200": _json("It can.", _FREE), "503": _json("It cannot; `reasons` say why.", _FREE)},
        ),
        "/metrics": _get("Numbers for Prometheus, of all gateways on this port.", {"200": _text("Prometheus text format.", "text/plain")}),
        "/": _get("The demo page.", {"200": _text("A page that is two clients.", "text/html")}),
        "/demo.css": _get("The demo page's style.", {"200": _text("CSS.", "text/css")}),
        "/demo.js": _get("The demo page's program.", {"200": _text("JavaScript.", "text/javascript")}),
        "/roskva.js": _get("The client for pages, as one module.", {"200": _text("JavaScript.", "text/javascript")}),
    }
    _say_who_may(paths)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Roskva",
            "version": release,
            "summary": "Publish versions of objects; look at what the service knows.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": _SCHEMAS, "securitySchemes": _KEYS},
    }
