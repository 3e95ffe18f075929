"""`trainmaster doctor`: what is wrong with this host, this process and this installation, with evidence and remedy."""

from orchestrator.doctor.arguments import check_arguments
from orchestrator.doctor.examination import examine
from orchestrator.doctor.finding import Finding, Severity
from orchestrator.doctor.present import to_json, to_text

__all__ = ["Finding", "Severity", "check_arguments", "examine", "to_json", "to_text"]
