from skipwise.report.command_tables import benchmarks_table, perplexity_table, trials_table
from skipwise.results.records import BenchmarkRecord
from tests.measured import readings, trials

BENCHMARK = BenchmarkRecord("m", "arc", "acc_norm", 25, 2048, None, "float32", "0.4", "d", 1172, 0.51234, 0.0146)


def test_tables_of_single_commands() -> None:
    read = [*readings("m", 256, 15.0), *readings("m", 2048, 12.0)]
    sliding = perplexity_table("sliding", read, [256, 2048])
    assert sliding.rows[1] == ["2k", "12.0", "12.0 to 12.0", "6", "12,282"]
    truncated = perplexity_table("truncated", read[6:], [512, 2048])
    assert [row[:2] for row in truncated.rows] == [["512", "12.0"], ["2k", "12.0"]]
    positions = perplexity_table("by-position", read, [256, 2048])
    assert positions.rows[1] == ["256 .. 2,047", "2.485", "+0.223 [+0.223, +0.223]"]
    apart = [*readings("m", 256, 15.0, documents=1), *readings("m", 2048, 12.0, documents=2)[1:]]
    assert perplexity_table("by-position", apart, [2048]).rows[0][2] == "–"  # no shared document
    table = trials_table("passkey", [*trials("m", 2048, 45, 50), *trials("m", 256, 50, 50)])
    assert table.rows == [["256", "50 of 50", "100%", "93 to 100%"], ["2k", "45 of 50", "90%", "79 to 96%"]]
    assert benchmarks_table([BENCHMARK]).rows == [["arc", "25", "acc_norm", "0.5123", "0.0146", "1,172"]]
