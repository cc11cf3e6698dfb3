import pytest

from covey import prompts

FORMS = {
    "code": ("# Python\n", ""),
    "math": ("Question: ", "\nAnswer:"),
    "translation": ("English: ", "\nGerman:"),
    "summarisation": ("Abstract: ", "\nSummary:"),
    "chat": ("User: ", "\nAssistant:"),
    "edits": ("Edit: ", "\nAfter:"),
}


@pytest.mark.parametrize("domain", prompts.DOMAINS)
def test_a_domain_has_forty_distinct_prompts_and_sixteen_questions(domain: str) -> None:
    for found, count in ((prompts.load(domain), 40), (prompts.questions(domain), 16)):
        assert len(found) == len(set(found)) == count
        assert all(text == text.rstrip() for text in found)
    begin, end = FORMS[domain]
    assert all(text.startswith(begin) and text.endswith(end) for text in prompts.load(domain))


def test_domains_share_no_prompt() -> None:
    every = [prompt for domain in prompts.DOMAINS for prompt in prompts.load(domain)]
    assert len(set(every)) == len(every) == 240


def test_an_unknown_domain_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="the domains are code, math"):
        prompts.load("poetry")
    with pytest.raises(ValueError, match="the domains are code, math"):
        prompts.questions("poetry")
