"""OpenAI's client against `tpukit serve`: its stand-in answers as the API does.

openai_program.py ADDRESS
"""

from __future__ import annotations

import sys

import openai


def main(address: str) -> None:
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
    (model,) = client.models.list().data
    print(f"model {model.id} of {model.owned_by}")
    messages = [{"role": "user", "content": "hello"}]
    said = client.chat.completions.create(model=model.id, messages=messages)
    text = said.choices[0].message.content
    assert "stand-in" in text, text
    assert said.usage.total_tokens == said.usage.prompt_tokens + said.usage.completion_tokens
    stream = client.chat.completions.create(model=model.id, messages=messages, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text
    done = client.completions.create(model=model.id, prompt="hello", max_tokens=3)
    assert (done.choices[0].finish_reason, done.usage.completion_tokens) == ("length", 3)
    pieces = client.completions.create(model=model.id, prompt="hello", max_tokens=3, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == done.choices[0].text
    try:
        client.completions.create(model="another", prompt="hello")
    except openai.NotFoundError as error:
        print(f"another model: {error.body['message']}")
    else:
        raise SystemExit("another model answers")
    print(f"openai {openai.__version__}: {text}")


if __name__ == "__main__":
    main(sys.argv[1])
