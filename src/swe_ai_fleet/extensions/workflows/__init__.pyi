from swe_ai_fleet.domain.approval import ApprovalDecision as ApprovalDecision
from swe_ai_fleet.domain.event import ExecutionStatus as ExecutionStatus
from swe_ai_fleet.domain.workflow import AgentConfig as AgentConfig
from swe_ai_fleet.domain.workflow import AgentMode as AgentMode
from swe_ai_fleet.domain.workflow import BranchCase as BranchCase
from swe_ai_fleet.domain.workflow import Condition as Condition
from swe_ai_fleet.domain.workflow import Edge as Edge
from swe_ai_fleet.domain.workflow import Node as Node
from swe_ai_fleet.domain.workflow import NodeStatus as NodeStatus
from swe_ai_fleet.domain.workflow import NodeType as NodeType
from swe_ai_fleet.domain.workflow import Workflow as Workflow
from swe_ai_fleet.domain.workflow import WorkflowInput as WorkflowInput
from swe_ai_fleet.extension_registry import Extension
from swe_ai_fleet.extensions.workflows.documents import InvalidWorkflow as InvalidWorkflow
from swe_ai_fleet.extensions.workflows.documents import WorkflowFault as WorkflowFault
from swe_ai_fleet.extensions.workflows.executor import WorkflowExecutor as WorkflowExecutor
from swe_ai_fleet.extensions.workflows.local_nodes import LLMAgent as LLMAgent
from swe_ai_fleet.extensions.workflows.reading import mermaid as mermaid
from swe_ai_fleet.extensions.workflows.reading import read_catalog as read_catalog
from swe_ai_fleet.extensions.workflows.reading import read_workflow as read_workflow
from swe_ai_fleet.extensions.workflows.runner import ExecutionState as ExecutionState
from swe_ai_fleet.extensions.workflows.runner import NodeApproval as NodeApproval
from swe_ai_fleet.extensions.workflows.runner import NodeDecision as NodeDecision
from swe_ai_fleet.extensions.workflows.runner import NodeOutcome as NodeOutcome
from swe_ai_fleet.extensions.workflows.runner import Update as Update
from swe_ai_fleet.extensions.workflows.schema import workflow_schema as workflow_schema

EXTENSION: Extension
