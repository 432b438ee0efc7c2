"""What leaves the agent: records become chained lines on disk, outputs read them there.

Comes in: encoded records. Goes out: segments that show any change made to them later.
Never: a record on the network that is not on this disk first.
"""
