"""A language model as judge."""

from openenv_sandbox.rubrics.llm_judge import LLMJudge as LLMJudge

__all__ = [
    "LLMJudge",
]
