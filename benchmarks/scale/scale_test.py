# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Every curve is measured and written, of few small points."""

import pathlib

from absl.testing import absltest
from absl.testing import flagsaver

from benchmarks.scale import curve
from benchmarks.scale import scale


def _curve(points):
  return curve.Curve(name="c", title="C", text="T.", x="x", points=points)


class ScaleTest(absltest.TestCase):

  def test_exponent_is_of_the_upper_half(self):
    of = _curve(
        [
            {"x": x, "constant": 7.0, "square": max(50, x * x), "lacking": None}
            for x in (1, 10, 100, 1000)
        ]
    )
    self.assertAlmostEqual(of.exponent("constant"), 0)
    self.assertAlmostEqual(of.exponent("square"), 2)
    self.assertIsNone(of.exponent("lacking"))
    self.assertIn("| *exponent* | 0.00 | 2.00 | - |", of.to_markdown())
    self.assertIn("| 1,000 | 7 | 1,000,000 | - |", of.to_markdown())

  def test_some_curves_are_measured_and_written_into_the_others(self):
    directory = pathlib.Path(self.create_tempdir().full_path)
    (directory / "RESULTS.md").write_text(
        "# Head\n\n<!-- tables -->\n\nTables.\n\n<!-- hosts -->\n\nOld.\n"
    )
    with flagsaver.flagsaver(
        curves=["hosts", "agreement"], quick=True, output_dir=str(directory)
    ):
      scale.main([])
    text = (directory / "RESULTS.md").read_text()
    self.assertIn("Tables.\n\n<!-- hosts -->", text)
    self.assertNotIn("Old.", text)
    self.assertRegex(text, r"\| 16 \| 4 \| [\d.]+ \| 15 \| [\d.]+ \|")
    for picture in ("hosts", "agreement", "agreement_here"):
      self.assertGreater((directory / f"{picture}.png").stat().st_size, 10_000)

  def test_models_run(self):
    with flagsaver.flagsaver(curves=["tables", "sizes"], quick=True):
      scale.main([])


if __name__ == "__main__":
  absltest.main()
