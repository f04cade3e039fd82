"""The schemas in docs/schemas are those of the types, and every golden document keeps to its schema."""

import json

import pytest
from golden import cases, schemas

MADE = schemas.made()


def test_the_schemas_of_the_docs_are_those_of_the_types():
    kept = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in schemas.FOLDER.iterdir()}
    assert kept == MADE, "python tests/golden/schemas.py writes them anew"


@pytest.mark.parametrize("name", cases.CASES)
def test_a_golden_document_keeps_to_its_schema(name):
    schema = MADE["analysis"]
    assert schemas.errors(cases.expected(name), schema, schema) == []


def test_a_key_too_many_a_missing_one_and_a_wrong_type_are_named():
    schema, document = MADE["analysis"], cases.expected("demo_slow_link")
    document["points"][0]["extra"] = 1
    del document["points"][1]["comm"]
    document["run"]["id"] = 5
    assert schemas.errors(document, schema, schema) == [
        "$.run.id: 5 is no string",
        "$.points[0]: extra is not in the schema",
        "$.points[1]: comm is missing",
    ]
