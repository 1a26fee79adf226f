"""The clients that people have, unchanged, as they point them at a server of theirs.

Hugging Face's is there with the extra `hf`; the others are tried where they are installed:
`pip install openai cohere langchain-openai langchain-cohere llama-index-embeddings-text-embeddings-inference
llama-index-postprocessor-tei-rerank`. They are no dependencies for development, since each brings many of its own.
"""

from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from tests.reading import LABELS, SENTENCES, TAGS, answered
from tests.server.tasks.conftest import TOKEN, Served


def test_feature_extraction_asks_a_server_of_one_model(one: Served) -> None:
    client = InferenceClient(one.url, token=TOKEN)
    found = client.feature_extraction(SENTENCES[0])
    np.testing.assert_allclose(found, answered(one.tokenizer, "embedder", SENTENCES[0])[None], atol=1e-6)
    prompted = client.feature_extraction("jazz", prompt_name="query", normalize=True, truncate=True)
    np.testing.assert_allclose(prompted, answered(one.tokenizer, "embedder", "play jazz")[None], atol=1e-6)
    assert client.feature_extraction("jazz", dimensions=3).shape == (1, 3)
    with pytest.raises(HfHubHTTPError, match="tokens") as refused:
        client.feature_extraction(" ".join(SENTENCES))
    assert refused.value.response.status_code == 413
    with pytest.raises(HfHubHTTPError, match="401"):
        InferenceClient(one.url, token="another-token-of-letters").feature_extraction("a")


@pytest.mark.parametrize("path", ["/models/intents", "/models/intents/predict"])
def test_classes_come_as_the_client_types_them(served: Served, path: str) -> None:
    client = InferenceClient(served.url + path)
    scores = torch.softmax(answered(served.tokenizer, "intents", SENTENCES[0]), -1)
    found = client.text_classification(SENTENCES[0])
    assert [element.label for element in found] == [LABELS[place] for place in scores.argsort(descending=True)]
    np.testing.assert_allclose([element.score for element in found], scores.sort(descending=True)[0], atol=1e-6)
    assert len(client.text_classification(SENTENCES[0], top_k=2)) == 2
    single = client.text_classification(SENTENCES[0], function_to_apply="sigmoid")
    assert sum(element.score for element in single) > 1.0


def test_tags_come_as_the_client_types_them(served: Served) -> None:
    client, text = InferenceClient(f"{served.url}/models/tagger"), SENTENCES[4]
    found = client.token_classification(text, aggregation_strategy="none", ignore_labels=[])
    read = served.tokenizer.encode(text)
    best = answered(served.tokenizer, "tagger", text).argmax(-1)
    right = [(TAGS[tag], *place) for tag, place in zip(best.tolist(), read.offsets, strict=True) if place[1] > place[0]]
    assert [(element.entity, element.start, element.end) for element in found] == right
    for element in client.token_classification(text):
        assert element.entity_group in ("PER", "LOC")
        assert element.word == text[element.start : element.end]


QUERY = "how warm is it"


def installed(name: str) -> Any:
    return pytest.importorskip(name, reason=f"needs {name}, which no dependency has")


def vectors(served: Served, texts: list[str]) -> list[np.ndarray]:
    return [answered(served.tokenizer, "embedder", text).numpy() for text in texts]


def ranked(served: Served) -> list[int]:
    scores = [answered(served.tokenizer, "reranker", QUERY, text).item() for text in SENTENCES]
    return sorted(range(len(SENTENCES)), key=lambda place: -scores[place])


def test_openai_embeds_and_lists_models(served: Served) -> None:
    openai = installed("openai")
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0)
    for more in ({}, {"encoding_format": "float"}):  # it asks for base64 by itself
        found = client.embeddings.create(model="embedder", input=SENTENCES, **more)
        np.testing.assert_allclose([one.embedding for one in found.data], vectors(served, SENTENCES), atol=1e-6)
    assert "embedder" in [model.id for model in client.models.list()]
    assert client.models.retrieve("plain").id == "plain"
    for kind, model, text in (
        (openai.NotFoundError, "nobody", "a"),
        (openai.BadRequestError, "intents", "a"),
        (openai.BadRequestError, "embedder", " ".join(SENTENCES)),
    ):
        with pytest.raises(kind) as refused:
            client.embeddings.create(model=model, input=text)
        assert refused.value.type == "invalid_request_error"


def test_cohere_reranks_in_both_versions(served: Served) -> None:
    cohere = installed("cohere")
    second = cohere.ClientV2(api_key="any", base_url=served.url)
    found = second.rerank(model="reranker", query=QUERY, documents=SENTENCES, top_n=2)
    assert [result.index for result in found.results] == ranked(served)[:2]
    assert found.meta.api_version.version == "2"
    first = cohere.Client(api_key="any", base_url=served.url)
    documents = [{"text": text} for text in SENTENCES]
    found = first.rerank(model="reranker", query=QUERY, documents=documents, return_documents=True)
    assert [result.document.text for result in found.results] == [SENTENCES[place] for place in ranked(served)]
    with pytest.raises(cohere.errors.NotFoundError):
        second.rerank(model="nobody", query=QUERY, documents=SENTENCES)


def test_langchains_adapters_embed_and_rerank(served: Served) -> None:
    embeds = installed("langchain_openai").OpenAIEmbeddings(
        model="embedder", base_url=f"{served.url}/v1", api_key="any", check_embedding_ctx_length=False
    )
    np.testing.assert_allclose(embeds.embed_documents(SENTENCES), vectors(served, SENTENCES), atol=1e-6)
    reranks = installed("langchain_cohere").CohereRerank(
        model="reranker", base_url=served.url, cohere_api_key="any", top_n=2
    )
    assert [entry["index"] for entry in reranks.rerank(SENTENCES, QUERY)] == ranked(served)[:2]


def test_llamaindexs_adapters_embed_and_rerank(served: Served) -> None:
    embeds = installed("llama_index.embeddings.text_embeddings_inference").TextEmbeddingsInference(
        model_name="embedder", base_url=f"{served.url}/models/embedder"
    )
    np.testing.assert_allclose(embeds.get_text_embedding_batch(SENTENCES), vectors(served, SENTENCES), atol=1e-6)
    reranks = installed("llama_index.postprocessor.tei_rerank").TextEmbeddingInference(
        base_url=f"{served.url}/models/reranker", top_n=2
    )
    schema = installed("llama_index.core.schema")
    nodes = [schema.NodeWithScore(node=schema.TextNode(text=text), score=0.0) for text in SENTENCES]
    best = reranks.postprocess_nodes(nodes, schema.QueryBundle(QUERY))
    assert [one.node.text for one in best] == [SENTENCES[place] for place in ranked(served)[:2]]
