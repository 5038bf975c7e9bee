"""The API on one page, from its own OpenAPI description: no scripts, nothing from elsewhere."""

from __future__ import annotations

from typing import Any, Final

from jinja2 import Environment

_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ info.title }} {{ info.version }}: API</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code { font-size: 0.9em; }
td, th { text-align: left; vertical-align: top; padding: 0.2rem 1rem 0.2rem 0; overflow-wrap: anywhere; }
</style>
<h1>{{ info.title }} {{ info.version }}</h1>
<p>{{ info.description }} For programs: <a href="/openapi.json">/openapi.json</a>.</p>
{% for operation in operations %}
<h2><code>{{ operation.method }} {{ operation.path }}</code></h2>
{% if operation.fields %}
<table>
<tr><th>field<th>type<th>
{% for field in operation.fields %}
<tr><td><code>{{ field.name }}</code><td>{{ field.type }}<td>{{ field.description }}
{% endfor %}
</table>
{% endif %}
{% endfor %}
</html>
"""


def docs_page(openapi: dict[str, Any]) -> str:
    """HTML for people; every value is escaped."""
    page = Environment(autoescape=True, trim_blocks=True).from_string(_PAGE)
    return page.render(info=openapi["info"], operations=list(_operations(openapi)))


def _operations(openapi: dict[str, Any]) -> list[dict[str, Any]]:
    schemas = openapi.get("components", {}).get("schemas", {})
    return [
        {"method": method.upper(), "path": path, "fields": _fields(operation, schemas)}
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    ]


def _fields(operation: dict[str, Any], schemas: dict[str, Any]) -> list[dict[str, str]]:
    content = operation.get("requestBody", {}).get("content", {})
    name = content.get("application/json", {}).get("schema", {}).get("$ref", "").rpartition("/")[2]
    body = schemas.get(name, {})
    required = body.get("required", [])
    return [
        {
            "name": field + (" (required)" if field in required else ""),
            "type": _type(schema),
            "description": schema.get("description", ""),
        }
        for field, schema in body.get("properties", {}).items()
    ]


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"] if each.get("type") != "null")
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    return str(schema.get("const", schema.get("type", "any")))
