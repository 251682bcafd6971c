"""Codes of the ledger and the words for them."""

from __future__ import annotations

from enum import IntEnum

import pytest

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Outcome, Stage
from twinbus.tables.code_words import code_of, word_of, words_of


@pytest.mark.parametrize("codes", [NamespaceRole, OperationKind, Stage, Outcome])
def test_every_code_has_a_word_of_its_own(codes: type[IntEnum]) -> None:
    assert [code_of(codes, word_of(code)) for code in codes] == list(codes)
    assert len(set(words_of(codes))) == len(codes)


def test_code_of_a_later_release_is_no_code() -> None:
    assert code_of(Stage, "code_25") is None
    assert code_of(Stage, "") is None
