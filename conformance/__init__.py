"""Black-box suites for any broker, with the statement that each verdict is about.

Conformance: ``assay.conformance.engine`` runs cases concurrently, each with its own client ids and topics. A case ends
by returning or by an exception of ``assay.conformance.outcome``; nine verdicts. A step that fails and that the case is
not about (``assay.conformance.rules``) blocks it; when all cases are done, ``assay.conformance.booking`` gives each
such incident one root: a failed case about that step, or else the first that met it. A case that fails while a request
is unanswered or a payload was changed is ``blocked`` by the plainest case about that, if it fails, too; an answer that
comes again is noted once and not shown. A wait that times out first measures the broker's and the harness's own delay
(``assay.conformance.stall``): what a loaded machine did is not the broker's fault, and such a failure is voided and run
again; and a verdict that hangs on timers is none (``unsupported``) on a broker that takes a second to say CONNACK. What
went wrong right behind the acknowledgement of a publish is tried again with pauses (``assay.conformance.haste``).
``assay.conformance.flow`` keeps what the clients of a case published and got: messages that were changed, came twice or
not at all, like connections that end, explain whatever fails, if a case about nothing else (``PLAINEST``, above all
``many-in-a-row``) fails, too. ``assay.conformance.bystander`` takes part in no case and must be served after each; who
is suspected is run again by itself. ``assay.conformance.peers`` judges every peer with a target file; one whose cases
disturb each other gets a broker per case.

Self-check: a case names the configurations of the reference broker on which it is proved (``judged_on``).
``assay.conformance.nursery`` forks brokers from one warm process: broken ones, and those that a case has to itself
because it moves their clock, kills them or has settings of its own. Cases of what outlives a kill share a broker and
its restarts (``assay.conformance.cohort``: it is killed once all that run have asked for it), and what fails there is
judged again alone, and then once more without a restart. A mutant counts as killed only when its cases fail (one may be
``blocked`` by another, if it fails a further mutant) and the broker did not merely crash; near misses and legal
variations must pass. Every case must also pass the variations with a ``freedom`` (a window of one, PINGRESP that
overtakes, late answers and wills, order between topics: ``conformance/mutants/everyone.py``), each with its clause.
"""
