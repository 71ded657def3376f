"""The page of an experiment report: its style and its Jinja template."""

STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --dim: #5b6575; --line: #d7dce4; --paper: #fff;
  --box: #f4f6f9; --mark: #2a63c8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --dim: #9aa5b5; --line: #3a4350;
  --paper: #14181e; --box: #1e242d; --mark: #7fa9f5; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1100px; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; } p { margin: .4rem 0; } a { color: var(--mark); }
.dim { color: var(--dim); } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .87rem; }
th { text-align: left; font-weight: 600; color: var(--dim); }
th, td { padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
pre { background: var(--box); padding: .7rem; border-radius: 6px; overflow: auto;
  max-height: 24rem; font-size: .8rem; white-space: pre-wrap; overflow-wrap: anywhere; }
details { border: 1px solid var(--line); border-radius: 6px; padding: .4rem .9rem;
  margin: .5rem 0; }
summary { cursor: pointer; } summary code { font-size: .95rem; }
figure { display: inline-block; margin: 0 1rem 1rem 0; }
figure img { max-width: 100%; width: 520px; background: #fff; border-radius: 6px; }
figcaption { color: var(--dim); font-size: .85rem; }
.lineage { max-width: 100%; height: auto; }
.lineage path { fill: none; stroke: var(--dim); stroke-width: 1.2; opacity: .7; }
.lineage rect { fill: var(--box); stroke: var(--line); }
.lineage rect.target { stroke: var(--mark); stroke-width: 2; }
.lineage text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.lineage text.stage { fill: var(--dim); font-size: 11px; }
"""

TEMPLATE = """
{%- macro grid(rows) -%}
<div class="wide"><table><thead><tr>{% for key in rows|columns %}<th>{{ key }}</th>{% endfor %}</tr>
</thead><tbody>{% for row in rows %}<tr>{% for key in rows|columns -%}
<td{% if row.get(key) is number %} class="number"{% endif %}>{{ row.get(key)|shown }}</td>
{%- endfor %}</tr>{% endfor %}</tbody></table></div>
{%- endmacro -%}
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title><style>{{ style }}</style></head><body>
<h1>{{ title }}</h1>
<p class="dim"><code>{{ address }}</code> · {{ artifacts|length }} artifacts ·
{{ total_bytes|size }} · {{ total_seconds|duration }} of building ·
{{ failures }} failed attempts</p>
{% if description %}<p>{{ description }}</p>{% endif %}
{% if warnings %}<h2>Read this first</h2><ul>{% for line in warnings %}<li>{{ line }}</li>
{% endfor %}</ul>{% endif %}
{% for item in artifacts if item.is_report %}{% for heading, rows in item.tables.items() %}
<h2>{{ heading }} <span class="dim">· {{ item.address }}</span></h2>{{ grid(rows) }}
{% endfor %}{% endfor %}
{% for item in artifacts if item.is_model %}
<h2>What the model writes <span class="dim">· {{ item.address }}</span></h2>
{% for heading, rows in item.tables.items() if heading == "Answers" %}{{ grid(rows) }}{% endfor %}
{% for heading, text in item.notes.items() %}<h3>{{ heading }}</h3><pre>{{ text }}</pre>{% endfor %}
{% endfor %}
{% for item in artifacts if item.plots %}
<h2>{{ item.address }}</h2>{% for heading, image in item.plots.items() %}
<figure><img alt="{{ heading }}" src="{{ image }}"><figcaption>{{ heading }}</figcaption></figure>
{% endfor %}{% endfor %}
<h2>Lineage</h2><div class="wide">{{ lineage }}</div>
<h2>What was read, kept and dropped</h2>{{ grid(counts) }}
<h2>Artifacts</h2>
{% for item in artifacts %}
<details id="{{ item.address }}"{% if item.is_target %} open{% endif %}>
<summary><code>{{ item.address }}</code> <span class="dim">{{ item.recipe }} ·
{{ item.created }} · {{ item.seconds|duration }} · {{ item.bytes|size }}</span></summary>
{% if item.numbers %}<h3>Numbers</h3>{{ grid(item.numbers) }}{% endif %}
{% for heading, rows in item.tables.items() if rows and not item.is_report %}
<h3>{{ heading }}</h3>{{ grid(rows) }}{% endfor %}
{% for heading, text in item.notes.items() if not item.is_model %}<h3>{{ heading }}</h3>
<pre>{{ text }}</pre>{% endfor %}
<h3>Recipe</h3><pre>{{ item.payload }}</pre>
<h3>Provenance</h3>{{ grid(item.provenance) }}
<h3>Attempts</h3>{{ grid(item.attempts) }}
</details>
{% endfor %}
</body></html>
"""
