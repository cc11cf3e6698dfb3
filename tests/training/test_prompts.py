import pytest

from covey import prompts

ENDS = {
    "math": "\nAnswer:",
    "translation": "\nGerman:",
    "summarisation": "\nSummary:",
    "chat": "\nAssistant:",
    "edits": "\nAfter:",
}
BEGINS = {
    "code": "# Python\n",
    "math": "Question: ",
    "translation": "English: ",
    "summarisation": "Abstract: ",
    "chat": "User: ",
    "edits": "Edit: ",
}


@pytest.mark.parametrize("domain", prompts.DOMAINS)
def test_forty_distinct_prompts_in_the_domain_s_form(domain: str) -> None:
    loaded = prompts.load(domain)
    assert len(loaded) == len(set(loaded)) == 40
    for prompt in loaded:
        assert prompt.startswith(BEGINS[domain])
        assert prompt.endswith(ENDS.get(domain, ""))
        assert prompt == prompt.rstrip()


def test_domains_share_no_prompt() -> None:
    every = [prompt for domain in prompts.DOMAINS for prompt in prompts.load(domain)]
    assert len(set(every)) == len(every) == 240


@pytest.mark.parametrize("domain", prompts.DOMAINS)
def test_sixteen_distinct_questions_in_a_domain(domain: str) -> None:
    asked = prompts.questions(domain)
    assert len(asked) == len(set(asked)) == 16
    assert all(question == question.strip() for question in asked)


def test_an_unknown_domain_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="the domains are code, math"):
        prompts.load("poetry")
    with pytest.raises(ValueError, match="the domains are code, math"):
        prompts.questions("poetry")
