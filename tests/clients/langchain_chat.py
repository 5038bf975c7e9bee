"""ChatOpenAI against the base URL given: whole, streamed, and bound to a schema; prints one JSON object."""

import json
import sys

from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Person(BaseModel):
    """What the last answer must be."""

    name: str
    age: int


if __name__ == "__main__":
    model = ChatOpenAI(base_url=sys.argv[1], api_key="unused", model="smollm2", temperature=0, max_tokens=24)
    whole = model.invoke("Name a planet.")
    streamed = "".join(part.content for part in model.stream("Name a planet."))
    person = model.with_structured_output(Person, method="json_schema").invoke("Ada is 36 years old.")
    answer = {"whole": whole.content, "streamed": streamed, "person": person.model_dump()}
    print(json.dumps({**answer, "usage": whole.usage_metadata}))
