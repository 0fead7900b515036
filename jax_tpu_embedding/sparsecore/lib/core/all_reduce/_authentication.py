# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How hosts know that a call or an answer is of their job.

With a secret that all hosts share, each call and each answer carries an
HMAC-SHA256 (RFC 2104) as metadata. A call's covers who sends it, which process
is to receive it, its number and all of the contribution; an answer's covers who
answers and the call. So a message that somebody recorded is of no use in
another job, to another host, for another step or a second time.

The first call to a host cannot name its process: it is answered with the name,
and made again.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Sequence
import hashlib
import hmac
import itertools
import json
import threading
from typing import Protocol

from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _identity

Metadata = Iterable[tuple[str, str | bytes]]

# What a contribution says: sync_key, sender, kind, value and round.
Contribution = tuple[int, int, str | None, bool | int | None, int]

# A shorter secret could be found by trying, from one recorded message.
MIN_SECRET_BYTES = 16
# Calls of one host to another that may overtake each other.
_WINDOW = 1024


class RefusedError(RuntimeError):
  """The sender does not show that it belongs to the job."""


class UnknownReceiverError(RuntimeError):
  """The sender belongs to the job, but means another process than this."""


class Authentication(Protocol):
  """What is added to calls and answers, and how it is checked."""

  def call(
      self, receiver: str | None, contribution: Contribution
  ) -> tuple[tuple[str, str], ...]:
    """The metadata of a call to the process `receiver`, if that is known."""

  def read_call(
      self, metadata: Metadata, contribution: Contribution
  ) -> _identity.Identity | None:
    """Who called, if it says so; raises RefusedError, UnknownReceiverError."""

  def answer(self, call: Metadata) -> tuple[tuple[str, str], ...]:
    """The metadata of the answer to a call."""

  def read_answer(
      self, call: Metadata, answer: Metadata
  ) -> _identity.Identity | None:
    """Who answered, if it says so; raises RefusedError."""


class Trusting:
  """Without a secret: everybody is believed."""

  def __init__(self, own: _identity.Identity):
    self._own = own

  def call(self, receiver, contribution):
    del receiver, contribution
    return self._own.to_metadata()

  def read_call(self, metadata, contribution):
    del contribution
    return _read_identity(metadata)

  def answer(self, call):
    del call
    return self._own.to_metadata()

  def read_answer(self, call, answer):
    del call
    return _read_identity(answer)


class BySecret:
  """With a secret that all hosts share. Threads may share an object."""

  def __init__(self, secret: str | bytes, own: _identity.Identity):
    """Keeps the secret.

    Raises:
      ValueError: if it is too short.
      TypeError: if it is neither text nor bytes.
    """
    if not isinstance(secret, (str, bytes)):
      raise TypeError(
          f"secret must be str or bytes, got {type(secret).__name__}."
      )
    self._secret = secret.encode() if isinstance(secret, str) else secret
    if len(self._secret) < MIN_SECRET_BYTES:
      raise ValueError(
          f"secret must have at least {MIN_SECRET_BYTES} bytes, got"
          f" {len(self._secret)}. Make one with: openssl rand -hex 32"
      )
    self._own = own
    # Of the calls to each receiver: its window is for those to itself.
    self._numbers = collections.defaultdict(itertools.count)
    self._windows: dict[str, _Window] = {}
    self._lock = threading.Lock()

  def call(self, receiver, contribution):
    with self._lock:
      number = next(self._numbers[receiver])
    said = (
        *self._own.to_metadata(),
        ("jte-receiver-id", receiver or ""),
        ("jte-call-number", str(number)),
    )
    return (*said, ("jte-mac", self._mac("call", said, contribution)))

  def read_call(self, metadata, contribution):
    received = dict(metadata)
    said = _said(received, "jte-receiver-id", "jte-call-number")
    if not self._is_mac(received, "call", said, contribution):
      raise RefusedError("It does not know the secret of this job.")
    caller = _read_identity(metadata)
    if received["jte-receiver-id"] != self._own.instance_id:
      raise UnknownReceiverError("The call is for another process.")
    with self._lock:
      window = self._windows.setdefault(caller.instance_id, _Window())
      if not window.admit(int(received["jte-call-number"])):
        raise RefusedError("The call was made before.")
    return caller

  def answer(self, call):
    said = self._own.to_metadata()
    mac = self._mac("answer", said, dict(call).get("jte-mac"))
    return (*said, ("jte-mac", mac))

  def read_answer(self, call, answer):
    received = dict(answer)
    said = _said(received)
    if not self._is_mac(received, "answer", said, dict(call).get("jte-mac")):
      raise RefusedError("It does not know the secret of this job.")
    return _read_identity(answer)

  def _mac(self, *parts) -> str:
    # JSON has one text for each value: nothing can be shifted between parts.
    text = json.dumps(parts)
    return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()

  def _is_mac(self, received, *parts) -> bool:
    # Takes the same time wherever the two differ.
    return hmac.compare_digest(
        str(received.get("jte-mac", "")).encode(), self._mac(*parts).encode()
    )


class _Window:
  """Which numbers of one host have been seen."""

  def __init__(self):
    self._seen: set[int] = set()
    self._highest = -1

  def admit(self, number: int) -> bool:
    """Whether the number is new; one that is long past is not."""
    if number in self._seen or number <= self._highest - _WINDOW:
      return False
    self._seen.add(number)
    if number > self._highest:
      self._highest = number
      if len(self._seen) > 2 * _WINDOW:
        self._seen = {n for n in self._seen if n > number - _WINDOW}
    return True


def _said(received: dict[str, str | bytes], *more: str) -> Sequence:
  """What a message says of its sender, as its sender signed it."""
  return tuple(
      (key, str(received.get(key, ""))) for key in (*_identity.KEYS, *more)
  )


def _read_identity(metadata: Metadata) -> _identity.Identity | None:
  try:
    return _identity.Identity.from_metadata(metadata)
  except ValueError as error:
    raise RefusedError(
        f"What it says of itself makes no sense: {error}."
    ) from error
