"""Reports of the quickstart network that tests share."""

from launcher.core.run_dir import strategy_name
from launcher.sharding.plan import plan_of, plan_report
from launcher.sharding.propagation import propagated
from launcher.sharding.strategy import cutting_of
from launcher.sharding.strategy_report import report_text

from .networks import quickstart

GRAPH = quickstart()
RANKS = 8


def tutorials_plan():
    given = {"matmul": cutting_of(GRAPH.by_name["matmul"].expression, ((2, 4), (4, 1)), RANKS, "matmul")}
    return plan_of(GRAPH, propagated(GRAPH, given, RANKS), RANKS)


def report_of(rank, **more):
    return plan_report(tutorials_plan(), rank, recipe="quickstart", layout="dp=1 mp=8 pp=1", **more)


def write_reports(directory, ranks=range(RANKS)):
    directory.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        (directory / strategy_name(rank)).write_text(report_text(report_of(rank)))
